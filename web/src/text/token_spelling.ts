// Readable tokens. Tokenizers mark spaces in different ways; the text is shown with its spaces.

export interface Spelled {
  text: string;
  /** Whether a space precedes it. */
  space: boolean;
  /** Whether a line ends after it. */
  breaks: boolean;
}

const SPACE = /^[\u0120\u2581]/; // Ġ of byte-level BPE, ▁ of SentencePiece
const LINES = /[\n\u010a]/g; // Ċ is a line's end in byte-level BPE
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/; // Hebrew, Arabic, Syriac and others
const OVERRIDES = /[\u202a-\u202e\u2066-\u2069]/; // they would reverse the text after them
const CONTROLS = /(?![\t\n])\p{Cc}/u;
const ALWAYS = new RegExp(`${OVERRIDES.source}|${CONTROLS.source}`, "gu");
const INVISIBLE = /^(?! +$)[\p{Default_Ignorable_Code_Point}\p{Zs}]+$/u; // part of emoji and texts, but not alone
const SPECIAL = /^(\[[A-Z]+\]|<[^<>]+>)$/;

/** A token as text, and whether a space precedes it, depending on the markers of the vocabulary. */
type Style = (token: string) => [text: string, space: boolean];

const marked: Style = (token) => {
  const text = token.replace(SPACE, "").replaceAll("\u0120", " ").replaceAll("\u010a", "\n");
  const space = SPACE.test(token) || SPECIAL.test(token);
  return space && !text ? [" ", false] : [text, space]; // a marker alone is a space
};
const subwords: Style = (token) => [token.replace(/^##/, ""), !token.startsWith("##")];
const letters: Style = (token) => [token, false]; // spaces are tokens or parts of tokens
const words: Style = (token) => [token, !/^[.,;:!?)\]}。，；：！？、”’]$/.test(token)];

function styleOf(tokens: readonly string[]): Style {
  if (tokens.some((token) => SPACE.test(token))) return marked;
  if (tokens.some((token) => token.startsWith("##"))) return subwords;
  const plain = tokens.filter((token) => !SPECIAL.test(token));
  const spaced = plain.some((token) => /^\s|\s$/.test(token));
  return spaced || plain.every((token) => Array.from(token).length <= 1) ? letters : words;
}

export function spell(tokens: readonly string[]): Spelled[] {
  const style = styleOf(tokens);
  return tokens.map((token, index) => {
    const [text, space] = style(token);
    return { text: shownLines(text), space: space && index > 0, breaks: token.search(LINES) >= 0 };
  });
}

/** A text with visible line ends and control characters. */
function shownLines(text: string): string {
  return controlsNamed(text).replace(LINES, "⏎");
}

/** A text whose control characters, such as ⟨U+202E⟩, are visible and have no effect. */
function controlsNamed(text: string): string {
  return text.replace(INVISIBLE.test(text) ? /./gsu : ALWAYS, (character) => {
    const code = character.codePointAt(0)!.toString(16).toUpperCase();
    return `⟨U+${code.padStart(4, "0")}⟩`;
  });
}

/** A single token for labels, with visible whitespace. The numbers beside a right-to-left token stay in their place. */
export function show(token: string): string {
  const label = visible(token);
  return RIGHT_TO_LEFT.test(label) ? `\u2068${label}\u2069` : label;
}

/** A token in quotes, or the number of its position. */
export function named(tokens: readonly string[] | null, position: number): string {
  const token = tokens?.[position];
  return token === undefined ? String(position) : `“${show(token)}”`;
}

function visible(token: string): string {
  if (!token) return "∅";
  const text = token
    .replace(SPACE, "")
    .replace(/^##(?=.)/, "")
    .replace(/\u0120/g, " ");
  const named = shownLines(text).replace(/\t/g, "⇥");
  return named.replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)) || "␣";
}

/** Split a long text after lines or sentences into parts that are drawn when they become visible. */
export function parts(spelled: readonly Spelled[], least = 120, most = 320): [number, number][] {
  const ranges: [number, number][] = [];
  let start = 0;
  for (let index = 0; index < spelled.length; index += 1) {
    const length = index + 1 - start;
    const token = spelled[index]!;
    if ((length >= least && (token.breaks || /[.!?。！？]$/.test(token.text))) || length >= most) {
      ranges.push([start, index + 1]);
      start = index + 1;
    }
  }
  if (start < spelled.length) ranges.push([start, spelled.length]);
  return ranges;
}

const repetitions = new WeakMap<readonly string[], ReadonlySet<string>>();

/** The position of a token if its name occurs more than once; otherwise null. */
export function positionIfRepeated(tokens: readonly string[] | null, position: number): number | null {
  if (!tokens) return null;
  let repeated = repetitions.get(tokens);
  if (!repeated) {
    const names = tokens.map(show);
    const first = new Map(names.map((name, index) => [name, index] as const).reverse());
    repeated = new Set(names.filter((name, index) => first.get(name) !== index));
    repetitions.set(tokens, repeated);
  }
  return repeated.has(show(tokens[position] ?? "")) ? position : null;
}
