import assert from "node:assert/strict";
import { test } from "node:test";

import { figure } from "../src/shared/format.ts";

test("weights of a long text differ in their figures", () => {
  assert.deepEqual([0.124, 0.0462, 0.00206, 0.00154, 0.00031].map(figure), [
    "0.124",
    "0.046",
    "0.0021",
    "0.0015",
    "3.1e-4",
  ]);
  assert.deepEqual([0, 1, null, NaN].map(figure), ["0", "1.000", "–", "–"]);
});
