import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { RecordedAnswers } from "../src/api/recorded_answers.ts";
import { halfPrecision } from "../src/api/stored_weights.ts";

const pack = (bytes: Uint8Array): string => deflateSync(bytes).toString("base64");
const halves = (...codes: number[]): string => pack(new Uint8Array(Uint16Array.from(codes).buffer));
const wholes = (...numbers: number[]): string => pack(new Uint8Array(Uint32Array.from(numbers).buffer));
const [HALF, QUARTER, ZERO] = [0x3800, 0x3400, 0];

const recorded = new RecordedAnswers({
  limit: 1,
  all: 4,
  reduced: true,
  image: { width: 2, height: 1, rows: 1, columns: 2, first: 1 },
  answers: { "api/maps/0/1/overview.pgm?size=96&reduce=max&scale=log": pack(new TextEncoder().encode("shades")) },
  heads: {
    "0/1": { level: 9, weights: { queries: 2, keys: 3, all: halves(QUARTER, HALF, QUARTER, HALF, HALF, ZERO) } },
    "2/mean": {
      level: 8,
      weights: {
        top: 2,
        query: { positions: wholes(7, 4, 3, 0), weights: halves(HALF, QUARTER, HALF, ZERO) },
        key: { positions: wholes(1, 0), weights: halves(HALF, ZERO) },
      },
    },
  },
});

const ask = async (path: string): Promise<unknown> => (await recorded.send(path, {})).json();

test("stored answers, whatever their version and ticket", async () => {
  const path = "api/maps/0/1/overview.pgm?size=96&reduce=max&scale=log&v=abc&ticket=3";
  assert.equal(await (await recorded.send(path, {})).text(), "shades");
});

test("answers from all weights of a head", async () => {
  assert.deepEqual(await ask("api/maps/0/1/query/0?top=2"), {
    keys: [1, 0],
    weights: [0.5, 0.25],
    row: [0.25, 0.5, 0.25],
  });
  assert.deepEqual(await ask("api/maps/0/1/key/2?top=5"), { queries: [0], weights: [0.25], column: [0.25, 0] });
  assert.deepEqual(await ask("api/maps/0/1/cell?query=0&key=2"), { query: 0, key: 2, weight: 0.25, rank: 2 });
  assert.deepEqual(await ask("api/overlay?map=0&head=1&query=1"), { rows: 1, columns: 2, weights: [0.5, 0] });
});

test("answers from the strongest weights", async () => {
  assert.deepEqual(await ask("api/maps/2/mean/query/0?top=1"), { keys: [7], weights: [0.5], row: null });
  assert.deepEqual(await ask("api/maps/2/mean/query/1?top=5"), { keys: [3], weights: [0.5], row: null });
  assert.deepEqual(await ask("api/maps/2/mean/cell?query=0&key=4"), { query: 0, key: 4, weight: 0.25, rank: 2 });
  assert.deepEqual(await ask("api/maps/2/mean/cell?query=0&key=5"), { query: 0, key: 5, weight: null, rank: null });
});

test("heads that are not stored are refused, and others are near", async () => {
  assert.equal((await recorded.send("api/maps/0/0/query/0?top=2", {})).status, 404);
  assert.deepEqual(recorded.nearest(2), { map: 2, head: "mean" });
  assert.deepEqual(recorded.nearest(1), { map: 0, head: 1 });
  assert.ok(recorded.has(2, "mean") && !recorded.has(2, 0));
  assert.equal(recorded.level(2, "mean"), 8);
});

test("numbers in half precision", () => {
  const codes = Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x7c00);
  assert.deepEqual([...halfPrecision(codes.buffer)], [1, -2, 2 ** -24, NaN]);
});
