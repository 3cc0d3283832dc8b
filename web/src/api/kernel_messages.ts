// Requests as messages through a port. In a notebook, `notebook/widget.ts` forwards them to the kernel.

import type { Transport } from "./transport.ts";

/** A request of the page. `body` is JSON, for requests with a body. */
export type PageRequest = { id: number; path: string; body: string | null } | { id: number; abort: true };
export type PageResponse = { id: number; status: number; body: ArrayBuffer };

const CACHE_SIZE = 2 ** 25; // bytes

/** Answers that never change: those of a path with a version. Over HTTP, the browser caches them. */
class AnswerCache {
  private readonly answers = new Map<string, ArrayBuffer>(); // the least recently used first
  private size = 0;

  get(path: string): ArrayBuffer | undefined {
    const answer = this.answers.get(path);
    if (answer) {
      this.answers.delete(path);
      this.answers.set(path, answer);
    }
    return answer;
  }

  put(path: string, answer: ArrayBuffer): void {
    if (!/[?&]v=/.test(path) || this.answers.has(path)) return;
    this.answers.set(path, answer);
    this.size += answer.byteLength;
    for (const [oldest, { byteLength }] of this.answers) {
      if (this.size <= CACHE_SIZE) break;
      this.answers.delete(oldest);
      this.size -= byteLength;
    }
  }
}

/** The message that carries the port. */
export const PORT = "regard port";

export function messages(port: MessagePort): Transport {
  const open = new Map<number, { path: string; resolve: (response: Response) => void }>();
  const cache = new AnswerCache();
  let last = 0;
  port.onmessage = ({ data: { id, status, body } }: MessageEvent<PageResponse>) => {
    const request = open.get(id);
    if (!request) return;
    open.delete(id);
    if (status === 200) cache.put(request.path, body);
    request.resolve(new Response(body, { status }));
  };
  const post = (request: PageRequest): void => port.postMessage(request);
  return (path, { signal, body }) =>
    new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const cached = cache.get(path);
      if (cached) return resolve(new Response(cached));
      const id = ++last;
      open.set(id, { path, resolve });
      signal?.addEventListener("abort", () => {
        if (!open.delete(id)) return;
        post({ id, abort: true });
        reject(signal.reason as Error);
      });
      post({ id, path, body: typeof body === "string" ? body : null });
    });
}

/** Wait for the port that the surrounding page sends. */
export function arrivingPort(): Promise<MessagePort> {
  return new Promise((resolve) => {
    window.addEventListener("message", ({ data, ports }: MessageEvent<unknown>) => {
      if (data === PORT && ports[0]) resolve(ports[0]);
    });
  });
}
