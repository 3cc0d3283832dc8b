// The state of the page in the URL: #text?map=3&head=5&token=12. A bookmark restores it.

export const VIEWS = ["map", "text", "image", "translate", "generate"] as const;
export type View = (typeof VIEWS)[number];
export type Head = number | "mean";

const MAX_SENTENCE_LENGTH = 2000; // maximum number of characters of a sentence or a prompt in the URL
const MAX_STOP_LENGTH = 100;

type Field<T> = (text: string | null) => T;

const whole: Field<number | null> = (text) => (text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null);

/** Parse a number in low…high. */
function number(low: number, high: number, otherwise: number): Field<number> {
  return (text) => {
    const value = text !== null && /^\d+(\.\d+)?$/.test(text) ? Number(text) : NaN;
    return value >= low && value <= high ? value : otherwise;
  };
}

/** Parse one of a few values; the first is the default. */
function oneOf<T extends string>(...choices: [T, ...T[]]): Field<T> {
  return (text) => choices.find((choice) => choice === text) ?? choices[0];
}

const head: Field<Head> = (text) => (text === "mean" ? "mean" : (whole(text) ?? 0));

const sight: Field<[left: number, top: number, across: number] | null> = (text) => {
  const [left = NaN, top = NaN, across = NaN, ...more] = (text ?? "").split(",").map(Number);
  return Number.isFinite(left + top + across) && across > 0 && !more.length ? [left, top, across] : null;
};

const numbers: Field<number[] | null> = (text) => {
  const all = text === null || !/^\d{1,9}(,\d{1,9})*$/.test(text) ? [] : text.split(",").map(Number);
  return all.length && all.length % 2 === 0 ? all : null;
};

/** Parsers of the state in the URL. Missing or invalid values have their defaults. */
const FIELDS = {
  /** The selected map; null for the grid of all maps. */
  map: whole,
  head,
  reduce: oneOf("max", "mean"),
  scale: oneOf("log", "linear"),
  /** The selected token: a query for the direction "from" (attends to), a key for "to" (receives). */
  token: whole,
  /** The other end of a selected span. */
  end: whole,
  direction: oneOf("from", "to"),
  /** Links of the selected head, or of all heads in colours. */
  links: oneOf("one", "all"),
  /** Key at the left edge, query at the top edge, keys across. */
  sight,
  overlay: oneOf("class", "patch", "rollout"),
  patch: whole,
  /** The sentence to translate, or the prompt to continue. */
  say: (text: string | null) => (text ?? "").slice(0, MAX_SENTENCE_LENGTH),
  /** Settings of a generation. */
  seed: (text: string | null) => whole(text) ?? 0,
  temperature: number(0, 10, 1),
  top_k: (text: string | null) => whole(text) ?? 0,
  top_p: number(0.05, 1, 1),
  min_p: number(0, 1, 0),
  repetition_penalty: number(0.1, 10, 1),
  tokens: (text: string | null) => number(1, 4096, 64)(String(whole(text))),
  /** The string that ends a text, as typed; empty for none. */
  stop: (text: string | null) => (text ?? "").slice(0, MAX_STOP_LENGTH),
  /** Whether the prompt is a message to a model trained on conversations. */
  chat: (text: string | null) => text === "true",
  /** The branches of a generated text: the step and the id of the other token, of one branch after the other. */
  branches: numbers,
  /** The selected token of a prompt or a generated text. */
  at: whole,
  /** The layer whose attention is shown for a generated token; null for the last one. */
  layer: whole,
};

export type State = { view: View } & { [Name in keyof typeof FIELDS]: ReturnType<(typeof FIELDS)[Name]> };

export function read(hash: string): State {
  const [name, query] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const field = new URLSearchParams(query ?? "");
  const parts = Object.entries(FIELDS).map(([name, parse]) => [name, parse(field.get(name))]);
  return { view: oneOf(...VIEWS)(name ?? null), ...Object.fromEntries(parts) } as State;
}

export const START = read("");

/** The URL of a state: only values that differ from the defaults. */
export function write(state: State): string {
  const field = new URLSearchParams();
  for (const name of Object.keys(START) as (keyof State)[]) {
    const value = state[name];
    if (name === "view" || value === null || value === START[name]) continue;
    field.set(name, Array.isArray(value) ? value.map((number) => Number(number.toFixed(2))).join(",") : String(value));
  }
  const query = field.toString().replaceAll("%2C", ",");
  return `#${state.view}${query ? `?${query}` : ""}`;
}

type Shape = { heads: number; queries: number; keys: number };

/** The nearest state that is valid for these maps: a bookmark may be of another target. */
export function fit(state: State, shapes: readonly Shape[]): State {
  const within = (value: number | null, size: number): number | null => (value !== null && value < size ? value : null);
  const map = within(state.map, shapes.length);
  const shape = shapes[map ?? 0];
  if (!shape) return { ...state, map: null, token: null, end: null, sight: null };
  const size = state.direction === "from" ? shape.queries : shape.keys;
  const token = within(state.token, size);
  return {
    ...state,
    map,
    head: state.head === "mean" ? "mean" : (within(state.head, shape.heads) ?? 0),
    token,
    end: token === null ? null : within(state.end, size),
    sight: map === null ? null : state.sight,
  };
}

/** The properties of a target that decide where the page opens it. */
type Landing = { kind: string; can: readonly string[]; maps: readonly Shape[]; text: string | null };

/** The state in which the page opens a target: the most informative view. */
export function landing({ kind, can, maps, text }: Landing): Partial<State> {
  const say = (text ?? "").slice(0, MAX_SENTENCE_LENGTH);
  if (can.includes("image")) return { view: "image" };
  if (can.includes("translate")) return { view: "translate", say };
  if (can.includes("generate")) return { view: "generate", say };
  if (kind === "model" && can.includes("text")) {
    return { view: "text", map: maps.length - 1, head: "mean", scale: "linear" };
  }
  return {};
}
