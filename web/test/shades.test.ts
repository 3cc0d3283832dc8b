import assert from "node:assert/strict";
import { test } from "node:test";

import { ramp } from "../src/shared/palette.ts";
import { coloured, readPgm } from "../src/shared/shades.ts";

const file = (header: string, ...pixels: number[]): ArrayBuffer =>
  new Uint8Array([...new TextEncoder().encode(header), ...pixels]).buffer;

test("a tile is read for any first pixels", () => {
  const { width, height, pixels } = readPgm(file("P5\n3 2\n255\n", 10, 32, 48, 0, 255, 13));
  assert.deepEqual([width, height, [...pixels]], [3, 2, [10, 32, 48, 0, 255, 13]]);
});

test("an incomplete tile is rejected", () => {
  for (const wrong of [file("", 1), file("P6\n1 1\n255\n", 1), file("P5\n2 2\n255\n", 1, 2, 3)]) {
    assert.throws(() => readPgm(wrong), /a tile/);
  }
});

test("shades become the colours of the palette", () => {
  const colours = coloured({ width: 2, height: 1, pixels: new Uint8Array([0, 200]) }, "dark");
  assert.deepEqual([...colours], [...ramp("dark")[0]!, 255, ...ramp("dark")[200]!, 255]);
});
