// The weights of tokens, from the responses of the server.

import { paths } from "../api/client.ts";
import type { KeyAnswer, MapInfo, QueryAnswer, ReceivedAnswer } from "../api/types.ts";
import type { Head, State } from "../shell/url_state.ts";
import type { Weights } from "./token_text.tsx";

export type Answer = QueryAnswer | KeyAnswer;
export type Names = { query: string[]; key: string[] };
export type Direction = State["direction"];

/** The path of what a token attends to, or receives. */
export function pathOf(map: MapInfo, head: Head, direction: Direction, token: number, top: number): string {
  return direction === "from" ? paths.query(map.id, head, token, top) : paths.key(map.id, head, token, top);
}

export function weightsOf(answer: Answer): Weights {
  if ("keys" in answer) return { positions: answer.keys, weights: answer.weights, all: answer.row };
  return { positions: answer.queries, weights: answer.weights, all: answer.column };
}

/** The mean weight that each key receives, for each of `size` keys. */
export function receivedOf(size: number, { received, cells_per_entry: cells = 1 }: ReceivedAnswer): Weights {
  const all = Array.from({ length: size }, (_, position) => received[Math.floor(position / cells)] ?? 0);
  return { positions: [], weights: [received.reduce((most, weight) => Math.max(most, weight), 1e-12)], all };
}

/** The names on the side of the chosen token, and on the other side. */
export function sides(names: Names, direction: Direction): { from: string[]; to: string[] } {
  return direction === "from" ? { from: names.query, to: names.key } : { from: names.key, to: names.query };
}
