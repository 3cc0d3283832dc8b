import assert from "node:assert/strict";
import { test } from "node:test";

import { LANGUAGES, fill, preferred } from "../src/shared/translations.ts";

test("the page uses the first available language of the reader", () => {
  assert.equal(preferred(["fr-FR", "zh-TW", "en"]), "zh");
  assert.equal(preferred(["en-GB", "zh"]), "en");
  assert.equal(preferred(["fr"]), "en");
  assert.equal(preferred([]), "en");
});

test("both languages have every text, and Chinese texts are translated", () => {
  const placeholders = (text: string): string[] => [...new Set(text.match(/\{\w+\}/g))].sort();
  const walk = (en: unknown, zh: unknown, path: string): void => {
    if (typeof en === "string") {
      assert.ok(typeof zh === "string" && zh.length > 0, path);
      assert.deepEqual(placeholders(zh), placeholders(en), path);
      if (placeholders(en).length) assert.notEqual(zh, en, path);
    } else {
      const [own, other] = [en as Record<string, unknown>, zh as Record<string, unknown>];
      assert.deepEqual(Object.keys(other), Object.keys(own), path);
      for (const key of Object.keys(own)) walk(own[key], other[key], `${path}.${key}`);
    }
  };
  walk(LANGUAGES.en, LANGUAGES.zh, "");
});

test("values replace placeholders and are not interpreted", () => {
  assert.equal(fill("head {head} of {all}, {head}", { head: "{all}", all: 2 }), "head {all} of 2, {all}");
});

test("a noun follows its number", () => {
  const texts = ["0", "1", "2", "1,001"].map((all) => fill("{all} {all:head|heads}", { all }));
  assert.deepEqual(texts, ["0 heads", "1 head", "2 heads", "1,001 heads"]);
});
