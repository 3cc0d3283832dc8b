// What the server answers, and asking for it. Every question can be taken back.

import type { Head } from "./state.ts";

export interface MapInfo {
  id: number;
  name: string;
  kind: "self" | "causal" | "cross";
  heads: number;
  queries: number;
  keys: number;
  query_tokens: string | null;
  key_tokens: string | null;
}

export interface Picture {
  width: number;
  height: number;
  rows: number;
  columns: number;
  /** How many tokens (class, registers) come before the patches. */
  first: number;
}

export interface Target {
  kind: "capture" | "model" | "translator" | "images";
  title: string;
  version: string | number;
  tokens: Record<string, string[]>;
  maps: MapInfo[];
  image: Picture | null;
  can: ("map" | "text" | "image" | "translate" | "run")[];
}

/** Weights of what is not finite are null. */
export interface CellAnswer { query: number; key: number; weight: number | null; rank: number }
export interface QueryAnswer { keys: number[]; weights: number[]; row: number[] | null }
export interface KeyAnswer { queries: number[]; weights: number[]; column: number[] | null }
export interface ReceivedAnswer { received: number[]; cells_per_entry?: number }
export type Profile = Record<"entropy" | "distance" | "first" | "previous" | "same", number | null>;
export interface OverlayAnswer { rows: number; columns: number; weights: number[] }
/** What the server computes now, for whomever; the share that is done is null for work without steps. */
export interface Progress { working: { what: string; done: number | null }[]; waiting: number }

export interface Hypothesis {
  text: string;
  score: number;
  source: string[];
  target: string[];
  weights: number[][];
  source_words: string[];
  target_words: string[];
  links: [number, number][];
}

/** The server's answer to a request that it refuses, in its words. */
export class Refusal extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export async function ask(path: string, signal: AbortSignal, body?: unknown): Promise<Response> {
  const options: RequestInit = { signal };
  if (body !== undefined) {
    const headers = { "content-type": "application/json" };
    Object.assign(options, { method: "POST", headers, body: JSON.stringify(body) });
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  const told = await response.json().catch(() => null) as { error?: unknown } | null;
  const words = typeof told?.error === "string" ? told.error : `${response.status} ${response.statusText}`;
  throw new Refusal(response.status, words);
}

export async function answer<T>(path: string, signal: AbortSignal, body?: unknown): Promise<T> {
  return (await ask(path, signal, body)).json() as Promise<T>;
}

function of(map: number, head: Head): string {
  return `api/maps/${map}/${head}`;
}

export const paths = {
  target: "api/target",
  progress: "api/progress",
  run: "api/run",
  translate: "api/translate",
  image: (version: Target["version"]) => `api/image.png?v=${encodeURIComponent(version)}`,
  overview: (map: number, head: Head, look: string) => `${of(map, head)}/overview.pgm?size=96&${look}`,
  tile: (map: number, head: Head, level: number, column: number, row: number, look: string) =>
    `${of(map, head)}/tile/${level}/${column}/${row}.pgm?${look}`,
  cell: (map: number, head: Head, query: number, key: number) => `${of(map, head)}/cell?query=${query}&key=${key}`,
  query: (map: number, head: Head, query: number, top: number) => `${of(map, head)}/query/${query}?top=${top}`,
  key: (map: number, head: Head, key: number, top: number) => `${of(map, head)}/key/${key}?top=${top}`,
  received: (map: number, head: Head) => `${of(map, head)}/received`,
  profile: (map: number) => `api/maps/${map}/profile`,
  overlay: (map: number, head: Head, query: number) => `api/overlay?map=${map}&head=${head}&query=${query}`,
  rolledOverlay: (query: number) => `api/overlay?rollout=1&query=${query}`,
};
