import assert from "node:assert/strict";
import { test } from "node:test";

import { START, type State, fit, landing, read, write } from "../src/shell/url_state.ts";

const shapes = [
  { heads: 6, queries: 100, keys: 100 },
  { heads: 2, queries: 10, keys: 30 },
];

test("a URL restores the whole state", () => {
  const state: State = {
    view: "text",
    map: 1,
    head: "mean",
    reduce: "mean",
    scale: "linear",
    token: 7,
    end: 9,
    direction: "to",
    links: "all",
    sight: [1.25, -3.5, 40],
    overlay: "rollout",
    patch: 60,
    say: "Où est-ce ? 在哪里 & co",
    seed: 7,
    temperature: 0.7,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.02,
    repetition_penalty: 1.3,
    tokens: 12,
    stop: "\\n\\n",
    chat: true,
    branches: [3, 17, 8, 5],
    at: 9,
    layer: 3,
  };
  assert.deepEqual(read(write(state)), state);
  assert.deepEqual(read(write(START)), START);
});

test("default values are not in the URL", () => {
  assert.equal(write(START), "#map");
  assert.equal(write({ ...START, map: 0, head: 3 }), "#map?map=0&head=3");
  assert.equal(write({ ...START, map: 2, sight: [10, 20.456, 30] }), "#map?map=2&sight=10,20.46,30");
});

test("invalid values have their defaults", () => {
  const bad =
    "#map?map=-1&head=x&token=1e9&sight=1,2&reduce=sum&seed=-1&temperature=11&top_p=x&tokens=0&branches=3&at=-1";
  for (const hash of ["", "#", "#nowhere", bad, "#?map=%", "#map?sight=1,2,0", "#map?sight=a,b,c"]) {
    assert.deepEqual(read(hash), START, hash);
  }
});

test("a bookmark of another target leads to a valid state", () => {
  const state = read("#map?map=1&head=5&token=20&sight=0,0,9");
  assert.deepEqual(fit(state, shapes), { ...state, head: 0, token: null });
  assert.deepEqual(fit({ ...state, direction: "to" }, shapes), { ...state, head: 0, direction: "to" });
  assert.equal(fit(read("#map?map=7&sight=0,0,9"), shapes).map, null);
  assert.equal(fit(read("#map?map=7&sight=0,0,9"), shapes).sight, null);
  assert.equal(fit(read("#text?token=3&end=200"), shapes).end, null);
  assert.equal(fit(read("#map?map=0&token=3"), []).map, null);
});

test("a target opens at the view that shows most of it", () => {
  const target = { kind: "model", can: ["map", "text", "run"], maps: shapes, text: "a film" };
  assert.deepEqual(landing(target), { view: "text", map: 1, head: "mean", scale: "linear" });
  assert.deepEqual(landing({ ...target, kind: "capture", can: ["map", "text"] }), {});
  assert.deepEqual(landing({ ...target, can: ["map", "image"], text: null }), { view: "image" });
  assert.deepEqual(landing({ ...target, can: ["map", "text", "translate"] }), { view: "translate", say: "a film" });
  assert.deepEqual(landing({ ...target, can: ["generate", "run"], text: null }), { view: "generate", say: "" });
});
