// Requests to the server. Every request can be aborted.

import type { Words } from "../shared/translations.ts";
import type { Head } from "../shell/url_state.ts";
import { send } from "./transport.ts";
import type { RefusalAnswer } from "./types.ts";

/** A request that the server refused, with the server's message. */
export class Refusal extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** The message for a failed request. The server's messages are English. */
export function messageFor(error: unknown, words: Words): string {
  if (error instanceof TypeError) return words.unreachable; // fetch throws it if the server cannot be reached
  if (error instanceof Refusal && error.status === 410) return words.outdated;
  return error instanceof Error ? error.message : String(error);
}

export async function ask(path: string, signal: AbortSignal, body?: unknown): Promise<Response> {
  const options: RequestInit = { signal };
  if (body !== undefined) {
    const headers = { "content-type": "application/json" };
    Object.assign(options, { method: "POST", headers, body: JSON.stringify(body) });
  }
  const response = await send(path, options);
  if (response.ok) return response;
  const answer = (await response.json().catch(() => null)) as Partial<RefusalAnswer> | null;
  const message = typeof answer?.error === "string" ? answer.error : `${response.status} ${response.statusText}`;
  throw new Refusal(response.status, message);
}

export async function answer<T>(path: string, signal: AbortSignal, body?: unknown): Promise<T> {
  return (await ask(path, signal, body)).json() as Promise<T>;
}

function of(map: number, head: Head): string {
  return `api/maps/${map}/${head}`;
}

function ofGeneration(id: string): string {
  return `api/generate/${encodeURIComponent(id)}`;
}

export const paths = {
  target: "api/target",
  progress: "api/progress",
  run: "api/run",
  translate: "api/translate",
  generate: "api/generate",
  steps: (id: string, revision: number, from: number) => `${ofGeneration(id)}/steps?revision=${revision}&from=${from}`,
  branch: (id: string, revision: number) => `${ofGeneration(id)}/branch?revision=${revision}`,
  resume: (id: string, revision: number) => `${ofGeneration(id)}/continue?revision=${revision}`,
  attention: (id: string, revision: number, token: number, layer: number, head: Head) =>
    `${ofGeneration(id)}/attention?revision=${revision}&token=${token}&layer=${layer}&head=${head}`,
  explain: "api/explain",
  chart: (name: string, text: string) =>
    `api/explain/${encodeURIComponent(name)}${text ? `?${new URLSearchParams({ text })}` : ""}`,
  image: (version: string) => `api/image.png?v=${encodeURIComponent(version)}`,
  overview: (map: number, head: Head, options: string) => `${of(map, head)}/overview.pgm?size=96&${options}`,
  tile: (map: number, head: Head, level: number, column: number, row: number, options: string) =>
    `${of(map, head)}/tile/${level}/${column}/${row}.pgm?${options}`,
  cell: (map: number, head: Head, query: number, key: number) => `${of(map, head)}/cell?query=${query}&key=${key}`,
  query: (map: number, head: Head, query: number, top: number) => `${of(map, head)}/query/${query}?top=${top}`,
  key: (map: number, head: Head, key: number, top: number) => `${of(map, head)}/key/${key}?top=${top}`,
  received: (map: number, head: Head) => `${of(map, head)}/received`,
  profile: (map: number) => `api/maps/${map}/profile`,
  overlay: (map: number, head: Head, query: number) => `api/overlay?map=${map}&head=${head}&query=${query}`,
  rolledOverlay: (query: number) => `api/overlay?rollout=1&query=${query}`,
};
