// The transport of requests: HTTP, the recorded answers of a saved page, or messages to the kernel of a notebook.

export type Transport = (path: string, options: RequestInit) => Promise<Response>;

const byHttp: Transport = (path, options) => fetch(path, options);
let transport = byHttp;
const pictures = new Map<string, Promise<string>>();

/** Set the transport of all requests, before the first one. */
export function setTransport(next: Transport): void {
  transport = next;
}

/** The number of tiles that are requested at once. A browser opens few connections to a server, and some stay free for
 * what is clicked meanwhile. Messages to a kernel have no such limit, and wait longer for each answer. */
export function tilesAtOnce(): number {
  return transport === byHttp ? 4 : 16;
}

export function send(path: string, options: RequestInit): Promise<Response> {
  return transport(path, options);
}

/** The address of a picture for an <img>. Without HTTP, it is that of a blob. */
export function pictureAddress(path: string): Promise<string> {
  if (transport === byHttp) return Promise.resolve(path);
  const known = pictures.get(path) ?? transport(path, {}).then(async (file) => URL.createObjectURL(await file.blob()));
  pictures.set(path, known);
  return known;
}
