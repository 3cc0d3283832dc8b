import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { colourOf } from "../src/explain/value_picture.ts";
import { type Colour, type Theme, contrast, contrasting, luminance, ramp, shade } from "../src/shared/palette.ts";

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

/** The colours that the style sheet names, in one theme. */
function named(theme: Theme): Record<string, Colour> {
  const sheet = readFileSync(new URL("../src/shell/style.css", import.meta.url), "utf8");
  const [light, dark] = [...sheet.matchAll(/:root[^{]*\{([^}]*)\}/g)].map((match) => match[1]!);
  const colours = (theme === "light" ? light! : dark!).matchAll(/--([\w-]+): #(\w\w)(\w\w)(\w\w)/g);
  return Object.fromEntries(
    [...colours].map((match) => [match[1]!, match.slice(2).map((part) => parseInt(part, 16)) as Colour]),
  );
}

/** `share` of one colour over another. */
function over(share: number, top: Colour, bottom: Colour): Colour {
  return bottom.map((value, channel) => value + share * (top[channel]! - value)) as Colour;
}

test("the text of a token can be read on every shade", () => {
  for (const theme of ["light", "dark"] as const) {
    const { accent, ink, soft, ...colours } = named(theme) as Record<string, Colour>;
    for (const ground of [colours["paper"]!, colours["raised"]!]) {
      const ratio = (text: Colour, strength: number): number =>
        contrast(luminance(text), luminance(over(strength, accent!, ground)));
      for (let step = 0; step <= 1000; step += 1) {
        const strength = step / 1000;
        const plain = over(Math.min(1, 1.2 * strength), colours["on-strong"]!, ink!);
        const text = strength > 0.85 ? colours["on-deep"]! : plain;
        assert.ok(ratio(text, strength) >= 4.5, `${theme} ${strength}: ${ratio(text, strength)}`);
      }
      assert.ok(ratio(soft!, 0.05) >= 4.5);
    }
  }
});

test("numbers can be read on their colours", () => {
  for (const theme of ["light", "dark"] as const) {
    for (const value of [-Infinity, ...Array.from({ length: 401 }, (_, step) => step / 200 - 1)]) {
      for (const signed of value < 0 ? [true] : [true, false]) {
        const background = luminance(colourOf(value, 1, signed, theme)!);
        const text = contrasting(colourOf(value, 1, signed, theme)!) === "white" ? 1 : 0;
        assert.ok(contrast(background, text) >= 4.5, `${theme} ${value}`);
      }
    }
  }
  assert.equal(colourOf(Number.NaN, 1, true, "light"), null);
});
