// What one looks at, as text in the address bar: #text?map=3&head=5&token=12. A bookmark brings it all back.

export const VIEWS = ["map", "text", "image", "translate"] as const;
export type View = (typeof VIEWS)[number];
export type Head = number | "mean";

export interface State {
  view: View;
  /** The map looked at; none: the grid of all. */
  map: number | null;
  head: Head;
  reduce: "max" | "mean";
  scale: "linear" | "log";
  /** The chosen token: a query when looking at what it attends to ("from"), a key when at what it receives ("to"). */
  token: number | null;
  /** The other end of a chosen span. */
  end: number | null;
  direction: "from" | "to";
  /** Key at the left edge, query at the top edge, keys across. */
  sight: [left: number, top: number, across: number] | null;
  overlay: "class" | "patch" | "rollout";
  patch: number | null;
  /** The sentence to translate. */
  say: string;
}

export const START: State = {
  view: "map",
  map: null,
  head: 0,
  reduce: "max",
  scale: "log",
  token: null,
  end: null,
  direction: "from",
  sight: null,
  overlay: "class",
  patch: null,
  say: "",
};

const LONGEST = 2000; // letters of a sentence kept in an address

function whole(text: string | null): number | null {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function one<T extends string>(text: string | null, choices: readonly T[], otherwise: T): T {
  return choices.find((choice) => choice === text) ?? otherwise;
}

/** The state that an address tells; whatever it does not tell, or tells wrongly, is as at the start. */
export function read(hash: string): State {
  const [name, query] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const field = new URLSearchParams(query ?? "");
  const numbers = (field.get("sight") ?? "").split(",").map(Number);
  const sound = numbers.length === 3 && numbers.every(Number.isFinite) && numbers[2]! > 0;
  return {
    view: one(name ?? null, VIEWS, START.view),
    map: whole(field.get("map")),
    head: field.get("head") === "mean" ? "mean" : (whole(field.get("head")) ?? START.head),
    reduce: one(field.get("reduce"), ["max", "mean"], START.reduce),
    scale: one(field.get("scale"), ["linear", "log"], START.scale),
    token: whole(field.get("token")),
    end: whole(field.get("end")),
    direction: one(field.get("direction"), ["from", "to"], START.direction),
    sight: sound ? [numbers[0]!, numbers[1]!, numbers[2]!] : null,
    overlay: one(field.get("overlay"), ["class", "patch", "rollout"], START.overlay),
    patch: whole(field.get("patch")),
    say: (field.get("say") ?? "").slice(0, LONGEST),
  };
}

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
