// Tokens as people read them. Tokenizers mark spaces in different ways; a text is shown with its spaces back.

export interface Spelled {
  text: string;
  /** A space stands before it. */
  space: boolean;
  /** A line ends after it. */
  breaks: boolean;
}

const SPACE = /^[\u0120\u2581]/; // Ġ of byte-level BPE, ▁ of SentencePiece
const LINE = /[\n\u010a]/; // Ċ is a line's end in byte-level BPE
const SPECIAL = /^(\[[A-Z]+\]|<[^<>]+>)$/;

/** The marks that a vocabulary uses, found from its tokens. */
function style(tokens: readonly string[]): "marked" | "pieces" | "letters" | "words" {
  if (tokens.some((token) => SPACE.test(token))) return "marked";
  if (tokens.some((token) => token.startsWith("##"))) return "pieces";
  const plain = tokens.filter((token) => !SPECIAL.test(token));
  if (plain.every((token) => Array.from(token).length <= 1) || plain.some((token) => /^\s|\s$/.test(token))) {
    return "letters"; // their spaces are tokens, or parts of tokens, themselves
  }
  return "words";
}

export function spell(tokens: readonly string[]): Spelled[] {
  const kind = style(tokens);
  return tokens.map((token, place) => {
    const breaks = LINE.test(token);
    let text = token;
    let space = place > 0;
    if (kind === "marked") {
      space = SPACE.test(token) && place > 0;
      text = token
        .replace(SPACE, "")
        .replace(/\u0120/g, " ")
        .replace(/\u010a/g, "\n");
      if (SPECIAL.test(token)) space = place > 0;
    } else if (kind === "pieces") {
      space = place > 0 && !token.startsWith("##");
      text = token.replace(/^##/, "");
    } else if (kind === "letters") {
      space = false;
    } else {
      space = place > 0 && !/^[.,;:!?)\]}。，；：！？、”’]$/.test(token);
    }
    return { text, space, breaks };
  });
}

/** One token on its own, for labels and read-outs: what cannot be seen is made visible. */
export function show(token: string): string {
  const text = token
    .replace(SPACE, "")
    .replace(/^##(?=.)/, "")
    .replace(/\u010a/g, "\n")
    .replace(/\u0120/g, " ");
  return (
    text
      .replace(/\n/g, "⏎")
      .replace(/\t/g, "⇥")
      .replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)) || "␣"
  );
}

/** Where a long text is cut into parts that are drawn when they come into sight: after a line or a sentence. */
export function parts(spelled: readonly Spelled[], least = 120, most = 320): [number, number][] {
  const found: [number, number][] = [];
  let start = 0;
  for (let place = 0; place < spelled.length; place += 1) {
    const length = place + 1 - start;
    const token = spelled[place]!;
    if ((length >= least && (token.breaks || /[.!?。！？]$/.test(token.text))) || length >= most) {
      found.push([start, place + 1]);
      start = place + 1;
    }
  }
  if (start < spelled.length) found.push([start, spelled.length]);
  return found;
}
