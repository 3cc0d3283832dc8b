import assert from "node:assert/strict";
import { test } from "node:test";

import { shorten, spacing, ticks } from "../src/map/axis_labels.ts";

test("labels are thinned in round steps when zooming out", () => {
  assert.deepEqual(
    [20, 15, 14, 7, 3, 1, 0.3, 0.01].map((scale) => spacing(scale, 15)),
    [1, 1, 2, 5, 5, 20, 50, 2000],
  );
});

test("labels are never closer than the gap", () => {
  for (let scale = 0.002; scale < 60; scale *= 1.37) assert.ok(spacing(scale, 15) * scale >= 15);
});

test("labels stay at the same entries while panning", () => {
  assert.deepEqual(ticks(0, 100, 2, 1000, 15), [0, 10, 20, 30, 40]);
  assert.deepEqual(ticks(7.3, 100, 2, 1000, 15), [10, 20, 30, 40, 50]);
  assert.deepEqual(ticks(-20, 100, 2, 1000, 15), [0, 10, 20]);
  assert.deepEqual(ticks(970, 100, 2, 1000, 15), [970, 980, 990]);
  assert.deepEqual(ticks(2.5, 60, 20, 4, 15), [2, 3]);
});

test("an invisible range has no labels", () => {
  assert.deepEqual(ticks(0, 100, 0, 10, 15), []);
  assert.deepEqual(ticks(0, 100, 5, 0, 15), []);
  assert.deepEqual(ticks(50, 100, 5, 10, 15), []);
});

test("a word is truncated between letters, never within one", () => {
  const measure = (text: string): number => Array.from(text).length;
  assert.equal(shorten("attention", 9, measure), "attention");
  assert.equal(shorten("attention", 5, measure), "atte…");
  assert.equal(shorten("👩👩👩👩", 3, measure), "👩👩…");
  assert.equal(shorten("word", 1, measure), "");
});
