// What one looks at, as text in the address bar: #text?map=3&head=5&token=12. A bookmark brings it all back.

export const VIEWS = ["map", "text", "image", "translate"] as const;
export type View = (typeof VIEWS)[number];
export type Head = number | "mean";

const LONGEST = 2000; // letters of a sentence kept in an address

type Field<T> = (text: string | null) => T;

const whole: Field<number | null> = (text) => (text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null);

/** One of a few; the first where none is named. */
function oneOf<T extends string>(...choices: [T, ...T[]]): Field<T> {
  return (text) => choices.find((choice) => choice === text) ?? choices[0];
}

const head: Field<Head> = (text) => (text === "mean" ? "mean" : (whole(text) ?? 0));

const sight: Field<[left: number, top: number, across: number] | null> = (text) => {
  const [left = NaN, top = NaN, across = NaN, ...more] = (text ?? "").split(",").map(Number);
  return Number.isFinite(left + top + across) && across > 0 && !more.length ? [left, top, across] : null;
};

/** How each part of the state is read from the address. What is missing or wrong there is as at the start. */
const FIELDS = {
  /** The map looked at; none: the grid of all. */
  map: whole,
  head,
  reduce: oneOf("max", "mean"),
  scale: oneOf("log", "linear"),
  /** The chosen token: a query when looking at what it attends to ("from"), a key when at what it receives ("to"). */
  token: whole,
  /** The other end of a chosen span. */
  end: whole,
  direction: oneOf("from", "to"),
  /** Key at the left edge, query at the top edge, keys across. */
  sight,
  overlay: oneOf("class", "patch", "rollout"),
  patch: whole,
  /** The sentence to translate. */
  say: (text: string | null) => (text ?? "").slice(0, LONGEST),
};

export type State = { view: View } & { [Name in keyof typeof FIELDS]: ReturnType<(typeof FIELDS)[Name]> };

export function read(hash: string): State {
  const [name, query] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const field = new URLSearchParams(query ?? "");
  const parts = Object.entries(FIELDS).map(([name, parse]) => [name, parse(field.get(name))]);
  return { view: oneOf(...VIEWS)(name ?? null), ...Object.fromEntries(parts) } as State;
}

export const START = read("");

/** The address of a state: only what differs from the start. */
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

export type Shape = { heads: number; queries: number; keys: number };

/** A state that these maps have: a bookmark of another target must not lead astray. */
export function fit(state: State, shapes: readonly Shape[]): State {
  const within = (value: number | null, size: number): number | null => (value !== null && value < size ? value : null);
  const map = within(state.map, shapes.length);
  const shape = shapes[map ?? 0];
  if (!shape) return { ...state, map: null, head: 0, token: null, end: null, sight: null };
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
