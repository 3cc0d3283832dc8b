import assert from "node:assert/strict";
import { test } from "node:test";

import { parts, show, spell } from "../src/text/token_spelling.ts";

const text = (tokens: string[]): string =>
  spell(tokens)
    .map(({ text, space }) => (space ? " " : "") + text)
    .join("");

test("tokens read as the text they came from", () => {
  assert.equal(text(["The", "Ġcat", "Ġs", "at", "."]), "The cat sat.");
  assert.equal(text(["▁The", "▁cat", "▁s", "at", "."]), "The cat sat.");
  assert.equal(text(["[CLS]", "the", "play", "##ing", "[SEP]"]), "[CLS] the playing [SEP]");
  assert.equal(text(["1", " ", "M", "a", "y"]), "1 May");
  assert.equal(text(["The", "cat", "sat", "."]), "The cat sat.");
  assert.equal(text(["x", "Ġ", "Ġy", "▁", "z"]), "x  y z");
  assert.deepEqual(spell(["▁", "▁a"])[0], { text: " ", space: false, breaks: false });
  assert.equal(text([]), "");
});

test("invisible characters are visible in a label", () => {
  const tokens = ["Ġthe", "##ing", "Ċ", " ", "", "Ġ", "a\tb", "▁x"];
  assert.deepEqual(tokens.map(show), ["the", "ing", "⏎", "␣", "∅", "␣", "a⇥b", "x"]);
  const alone = ["\u200b", "\u00a0", "\ufe0f", "\r\n", "\0x", "\ufeffthe", "👨‍👩‍👧", "नि\u200dx"];
  const labels = ["⟨U+200B⟩", "⟨U+00A0⟩", "⟨U+FE0F⟩", "⟨U+000D⟩⏎", "⟨U+0000⟩x", "\ufeffthe", "👨‍👩‍👧", "नि\u200dx"];
  assert.deepEqual(alone.map(show), labels);
  assert.deepEqual(["Ġ\u200b", "▁\u200b", "##\u00ad", "Ġ\u202ex"].map(show), [
    "⟨U+200B⟩",
    "⟨U+200B⟩",
    "⟨U+00AD⟩",
    "⟨U+202E⟩x",
  ]);
  assert.deepEqual(
    spell(alone).map(({ text }) => text),
    labels,
  );
});

test("the text of a token that ends a line is shown", () => {
  const tokens = ["Ġf", "();\n", "ĠĊĊ"];
  assert.deepEqual(
    spell(tokens).map(({ text, breaks }) => [text, breaks]),
    [
      ["f", false],
      ["();⏎", true],
      ["⏎⏎", true],
    ],
  );
});

test("a token cannot change the direction of the text after it", () => {
  assert.equal(text(["the", "\u202eabc", "cat"]), "the ⟨U+202E⟩abc cat");
  assert.deepEqual(["\u202eabc", "שלום", "Ġنص", "the"].map(show), [
    "⟨U+202E⟩abc",
    "\u2068שלום\u2069",
    "\u2068نص\u2069",
    "the",
  ]);
});

test("a long text is split after sentences, and no token is missing", () => {
  const spelled = spell(Array.from({ length: 1000 }, (_, index) => (index % 50 === 49 ? "." : "Ġword")));
  const result = parts(spelled);
  assert.equal(result[0]![0], 0);
  assert.equal(result[result.length - 1]![1], 1000);
  result.forEach(([start, end], index) => {
    assert.ok(end - start <= 320);
    if (index) assert.equal(start, result[index - 1]![1]);
    if (end < 1000) assert.equal(spelled[end - 1]!.text, ".");
  });
  assert.deepEqual(parts(spell(Array.from({ length: 700 }, () => "Ġword"))), [
    [0, 320],
    [320, 640],
    [640, 700],
  ]);
  assert.deepEqual(parts([]), []);
});
