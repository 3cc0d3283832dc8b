import assert from "node:assert/strict";
import { test } from "node:test";

import { ramp, shade } from "../src/shared/palette.ts";

const luminance = ([red, green, blue]: readonly number[]): number => {
  const linear = [red!, green!, blue!]
    .map((value) => value / 255)
    .map((share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0]! + 0.7152 * linear[1]! + 0.0722 * linear[2]!;
};

test("a stronger weight is always darker on paper and lighter at night", () => {
  for (const [theme, sign] of [
    ["light", -1],
    ["dark", 1],
  ] as const) {
    const table = ramp(theme).map(luminance);
    assert.equal(table.length, 256);
    for (let entry = 8; entry < 256; entry += 1) {
      assert.ok(sign * (table[entry]! - table[entry - 8]!) > 0, `${theme} ${entry}`);
    }
  }
});

test("weights are shaded by share, or over three decades", () => {
  assert.equal(shade(0.2, 0.4, "linear"), 0.5);
  assert.equal(shade(0.4, 0.4, "log"), 1);
  assert.ok(Math.abs(shade(0.004, 0.4, "log") - 1 / 3) < 1e-9);
  for (const weight of [0, -1, Number.NaN, 1e-9]) assert.equal(shade(weight, 0.4, "log"), 0);
  assert.equal(shade(1, 0, "linear"), 0);
});
