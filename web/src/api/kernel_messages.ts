// Requests as messages through a port. In a notebook, `notebook/widget.ts` forwards them to the kernel.

import type { Transport } from "./transport.ts";

/** A request of the page. `body` is JSON, for requests with a body. */
export type PageRequest = { id: number; path: string; body: string | null } | { id: number; abort: true };
export type PageResponse = { id: number; status: number; body: ArrayBuffer };

/** The message that carries the port. */
export const PORT = "regard port";

export function messages(port: MessagePort): Transport {
  const open = new Map<number, (response: Response) => void>();
  let last = 0;
  port.onmessage = ({ data }: MessageEvent<PageResponse>) => {
    open.get(data.id)?.(new Response(data.body, { status: data.status }));
    open.delete(data.id);
  };
  const post = (request: PageRequest): void => port.postMessage(request);
  return (path, { signal, body }) =>
    new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const id = ++last;
      open.set(id, resolve);
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
