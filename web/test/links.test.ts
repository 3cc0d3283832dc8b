import assert from "node:assert/strict";
import { test } from "node:test";

import { ends } from "../src/text/links.ts";

test("links end at the strongest, in the order of the text", () => {
  const links = [
    { from: 0, to: 9, weight: 0.5 },
    { from: 0, to: 2, weight: 0.3 },
    { from: 1, to: 2, weight: 0.3 },
    { from: 1, to: 5, weight: 0.1 },
  ];
  assert.deepEqual(ends(links, 2), [2, 9]);
  assert.deepEqual(ends([], 2), []);
});
