// The widget of notebooks, an anywidget module: the page in a frame. Its requests are messages to the kernel, so no port is
// opened. The frame keeps the styles and the keys of the page apart from those of the notebook.

import { PORT, type PageRequest, type PageResponse } from "../api/kernel_messages.ts";

/** The part of the widget's model that is used here. */
interface Model {
  get(name: "height"): number;
  send(content: object): void;
  on(event: "msg:custom", listener: Listener): void;
  off(event: "msg:custom", listener: Listener): void;
}
/** Answers of the kernel, with a buffer each. Other views of the same widget receive them, too. */
type Answers = { view: string; answers: { id: number; status: number }[] };
type Listener = (message: Answers, buffers: DataView[]) => void;

const PAGE = 0; // the id of the request for the page itself

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const view = Math.random().toString(36).slice(2);
  const { port1: port, port2: other } = new MessageChannel();
  const frame = document.createElement("iframe");
  frame.title = "regard";
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; box-sizing: border-box; border: 1px solid #8884`;
  frame.addEventListener("load", () => frame.contentWindow?.postMessage(PORT, "*", [other]), { once: true });
  const answered: Listener = (message, buffers) => {
    if (message.view !== view) return;
    for (const [index, { id, status }] of message.answers.entries()) {
      const { buffer, byteOffset, byteLength } = buffers[index]!;
      const body = buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
      if (id === PAGE) {
        frame.srcdoc = new TextDecoder().decode(body);
        el.append(frame);
      } else port.postMessage({ id, status, body } satisfies PageResponse, [body]);
    }
  };
  model.on("msg:custom", answered);
  // requests of one screen update arrive together, and every message passes through the notebook's server
  const requests: (PageRequest | { id: number; page: true })[] = [];
  const request = (item: (typeof requests)[number]): void => {
    if (!requests.length) setTimeout(() => model.send({ view, requests: requests.splice(0) }));
    requests.push(item);
  };
  port.onmessage = ({ data }: MessageEvent<PageRequest>) => request(data);
  request({ id: PAGE, page: true });
  return () => {
    model.off("msg:custom", answered);
    model.send({ view, closed: true });
    port.close();
  };
}

export default { render };
