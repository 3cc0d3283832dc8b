import assert from "node:assert/strict";
import { test } from "node:test";

import { cellAt, deepest, shallowest, stride } from "../src/map/zoom_levels.ts";

test("the deepest level has one cell per pixel for any size", () => {
  const maps = [
    [1, 1, 0],
    [2, 1, 1],
    [5, 256, 8],
    [257, 3, 9],
    [2048, 2048, 11],
    [131072, 131072, 17],
    [131073, 1, 18],
  ] as const;
  for (const [queries, keys, level] of maps) assert.equal(deepest(queries, keys), level);
});

test("the first requested level has the whole map in one tile", () => {
  for (const [queries, keys] of [
    [5, 9],
    [256, 100],
    [257, 3],
    [131072, 8],
  ] as const) {
    const cells = 2 ** (deepest(queries, keys) - shallowest(queries, keys)); // of a pixel
    const longest = Math.ceil(Math.max(queries, keys) / cells);
    assert.ok(longest <= 256 && longest >= Math.min(129, queries, keys));
  }
});

test("a point of the screen maps to a cell or to null", () => {
  const sight = { left: 10.5, top: 3, scale: 20 };
  assert.deepEqual(cellAt(sight, 0, 0, 50, 60), { query: 3, key: 10 });
  assert.deepEqual(cellAt(sight, 11, 19.9, 50, 60), { query: 3, key: 11 });
  assert.equal(cellAt(sight, -220, 0, 50, 60), null);
  assert.equal(cellAt({ ...sight, left: -1 }, 0, 0, 50, 60), null);
  assert.equal(cellAt(sight, 0, 950, 50, 60), null);
});

test("arrow keys move one cell if cells are large enough, otherwise a visible distance", () => {
  assert.deepEqual([stride(30), stride(4), stride(1), stride(0.1)], [1, 1, 8, 80]);
});
