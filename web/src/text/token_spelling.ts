// Readable tokens. Tokenizers mark spaces in different ways; the text is shown with its spaces.

export interface Spelled {
  text: string;
  /** Whether a space precedes it. */
  space: boolean;
  /** Whether a line ends after it. */
  breaks: boolean;
}

const SPACE = /^[\u0120\u2581]/; // Ġ of byte-level BPE, ▁ of SentencePiece
const LINE = /[\n\u010a]/; // Ċ is a line's end in byte-level BPE
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/; // Hebrew, Arabic, Syriac and others
const OVERRIDES = /[\u202a-\u202e\u2066-\u2069]/g; // they would reverse the text after them
const SPECIAL = /^(\[[A-Z]+\]|<[^<>]+>)$/;

/** A token as text, and whether a space precedes it, depending on the markers of the vocabulary. */
type Style = (token: string) => [text: string, space: boolean];

const marked: Style = (token) => [
  token.replace(SPACE, "").replaceAll("\u0120", " ").replaceAll("\u010a", "\n"),
  SPACE.test(token) || SPECIAL.test(token),
];
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
    return { text: withoutOverrides(text), space: space && index > 0, breaks: LINE.test(token) };
  });
}

/** A text whose direction controls are visible, as ⟨U+202E⟩, and have no effect. */
function withoutOverrides(text: string): string {
  return text.replace(OVERRIDES, (control) => `⟨U+${control.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

/** A single token for labels, with visible whitespace. The numbers beside a right-to-left token stay in their place. */
export function show(token: string): string {
  const label = visible(withoutOverrides(token));
  return RIGHT_TO_LEFT.test(label) ? `\u2068${label}\u2069` : label;
}

function visible(token: string): string {
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
