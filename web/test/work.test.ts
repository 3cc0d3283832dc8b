import assert from "node:assert/strict";
import { test } from "node:test";

import { progressText } from "../src/api/pending_requests.ts";

test("the running work, with its progress if known", () => {
  const working = [
    { what: "layers.0, head 3", done: 0.419 },
    { what: "another text", done: null },
  ];
  assert.equal(progressText({ working, waiting: 7 }, "en"), "layers.0, head 3: 41 % · another text");
  assert.equal(progressText({ working, waiting: 7 }, "zh"), "41 %");
  assert.equal(progressText({ working: [], waiting: 0 }, "en"), "");
});
