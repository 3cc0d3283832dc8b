import assert from "node:assert/strict";
import { test } from "node:test";

import { type PageRequest, messages } from "../src/api/kernel_messages.ts";

/** A transport whose kernel answers each request with the path and `length` bytes; and the requests that it received. */
function transport(length = 0) {
  const { port1, port2 } = new MessageChannel();
  const received: PageRequest[] = [];
  port2.onmessage = ({ data }: MessageEvent<PageRequest>) => {
    received.push(data);
    if (!("path" in data)) return;
    const text = new TextEncoder().encode(data.path);
    const body = new Uint8Array(text.length + length);
    body.set(text);
    port2.postMessage({ id: data.id, status: data.path.includes("missing") ? 404 : 200, body: body.buffer });
  };
  const close = (): void => port1.close();
  return { send: messages(port1), received, close };
}

test("an answer of a version is requested once, as over HTTP", async () => {
  const { send, received, close } = transport();
  for (let round = 0; round < 2; round++) {
    assert.equal(await (await send("api/tile?v=1", {})).text(), "api/tile?v=1");
    assert.equal(await (await send("api/progress", {})).text(), "api/progress");
    assert.equal((await send("api/missing?v=1", {})).status, 404);
  }
  const paths = received.map((request) => ("path" in request ? request.path : ""));
  assert.deepEqual(paths, ["api/tile?v=1", "api/progress", "api/missing?v=1", "api/progress", "api/missing?v=1"]);
  close();
});

test("the least recently used answers leave the cache", async () => {
  const { send, received, close } = transport(2 ** 24 - 100); // two fit
  for (const path of ["a?v=1", "b?v=1", "a?v=1", "c?v=1", "a?v=1", "b?v=1"]) await send(path, {});
  assert.deepEqual(
    received.map((request) => ("path" in request ? request.path : "")),
    ["a?v=1", "b?v=1", "c?v=1", "b?v=1"],
  );
  close();
});

test("an aborted request is reported to the kernel and not answered", async () => {
  const { send, received, close } = transport();
  const control = new AbortController();
  const answer = send("api/progress", { signal: control.signal });
  control.abort(new Error("left"));
  await assert.rejects(answer, /left/);
  await send("api/target", {});
  assert.deepEqual(received[1], { id: 1, abort: true });
  close();
});
