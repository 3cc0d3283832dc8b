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

/** A token as text, and whether a space stands before it, by the marks that the vocabulary uses. */
type Style = (token: string) => [text: string, space: boolean];

const marked: Style = (token) => [
  token.replace(SPACE, "").replaceAll("\u0120", " ").replaceAll("\u010a", "\n"),
  SPACE.test(token) || SPECIAL.test(token),
];
const pieces: Style = (token) => [token.replace(/^##/, ""), !token.startsWith("##")];
const letters: Style = (token) => [token, false]; // their spaces are tokens, or parts of tokens, themselves
const words: Style = (token) => [token, !/^[.,;:!?)\]}。，；：！？、”’]$/.test(token)];

function styleOf(tokens: readonly string[]): Style {
  if (tokens.some((token) => SPACE.test(token))) return marked;
  if (tokens.some((token) => token.startsWith("##"))) return pieces;
  const plain = tokens.filter((token) => !SPECIAL.test(token));
  const spaced = plain.some((token) => /^\s|\s$/.test(token));
  return spaced || plain.every((token) => Array.from(token).length <= 1) ? letters : words;
}

export function spell(tokens: readonly string[]): Spelled[] {
  const style = styleOf(tokens);
  return tokens.map((token, index) => {
    const [text, space] = style(token);
    return { text, space: space && index > 0, breaks: LINE.test(token) };
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
