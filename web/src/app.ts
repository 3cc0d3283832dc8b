// What the views share: the target, what is looked at, the words, and the way from one to the next.

import type { MapInfo, Target } from "./api.ts";
import type { Theme } from "./palette.ts";
import type { Head, State } from "./state.ts";
import { show } from "./tokens.ts";
import type { Words } from "./words.ts";
import type { Work } from "./work.ts";

export interface App {
  readonly target: Target;
  readonly state: State;
  readonly words: Words;
  readonly theme: Theme;
  readonly work: Work;
  /** Look at something else. It becomes a step of the browser's history unless `quiet`. */
  go(changes: Partial<State>, quiet?: boolean): void;
  /** Let the model read another text, and show that; false where it did not come to that. */
  run(text: string): Promise<boolean>;
}

/** A view: its element, and what it does when the state changed while it is shown. */
export interface Shown {
  readonly element: HTMLElement;
  update(before: State): void;
  key?(event: KeyboardEvent): boolean;
  /** Let the state tell what it does not tell yet: something else is about to be looked at. */
  note?(): void;
  close(): void;
}

export function mapOf(app: App): MapInfo {
  return app.target.maps[app.state.map ?? 0]!;
}

export function tokensOf(app: App, map: MapInfo, side: "query" | "key"): string[] | null {
  const table = side === "query" ? map.query_tokens : map.key_tokens;
  return table === null ? null : (app.target.tokens[table] ?? null);
}

/** A token and its place, as labels name it. */
export function named(tokens: readonly string[] | null, place: number): string {
  const token = tokens?.[place];
  return token === undefined ? String(place) : `“${show(token)}”`;
}

/** What a picture of a map depends on, as a query string. */
export function look(app: App): string {
  const { reduce, scale } = app.state;
  return new URLSearchParams({ reduce, scale, v: String(app.target.version) }).toString();
}

/** A layer's name without what all have in common, so that a row of a table can hold it. */
export function brief(name: string): string {
  return name.length <= 28 ? name : `…${name.slice(-27)}`;
}

export function headName(app: App, head: Head): string {
  return head === "mean" ? app.words.map.mean : String(head);
}
