import assert from "node:assert/strict";
import { test } from "node:test";

import { LANGUAGES, preferred } from "../src/shared/translations.ts";

test("the page speaks the reader's first language that it has", () => {
  assert.equal(preferred(["fr-FR", "zh-TW", "en"]), "zh");
  assert.equal(preferred(["en-GB", "zh"]), "en");
  assert.equal(preferred(["fr"]), "en");
  assert.equal(preferred([]), "en");
});

test("both languages say something everywhere, and Chinese is not English left over", () => {
  const walk = (en: unknown, zh: unknown, path: string): void => {
    if (typeof en === "string") assert.ok(typeof zh === "string" && zh.length > 0, path);
    else if (typeof en === "function") {
      const [a, b] = [en, zh].map((say) => (say as (...x: unknown[]) => string)("a", "b", "c", "d"));
      assert.ok(a && b && (a !== b || /^a × b$/.test(a)), path);
    } else {
      const [own, other] = [en as Record<string, unknown>, zh as Record<string, unknown>];
      for (const key of Object.keys(own)) walk(own[key], other[key], `${path}.${key}`);
    }
  };
  walk(LANGUAGES.en, LANGUAGES.zh, "");
});
