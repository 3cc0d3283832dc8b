import assert from "node:assert/strict";
import { test } from "node:test";

import { h } from "preact";

import { type Chart, Grid, type Node, origin, see } from "../src/explain/chart_model.ts";
import { toText } from "../src/explain/svg_text.ts";
import { paint } from "../src/explain/value_picture.ts";
import { numbers, opened, ways } from "../src/explain/open_groups.ts";
import { LANGUAGES, fill } from "../src/shared/translations.ts";

const node = (
  number: number,
  parent: number | null,
  kind: Node["kind"],
  en: string,
  time: number | null = null,
  open = false,
): Node => ({
  number,
  parent,
  kind,
  name: { en, zh: en },
  equation: "",
  rule: "",
  time,
  value: 0,
  operands: [],
  calls: [],
  operations: [],
  open,
});

const value = {
  letters: ["T", "W"],
  shape: [1, 3],
  cells: [1, 1, 3] as [number, number, number],
  largest: 1,
  scale: 1,
  data: "/n8BwACA",
};
const chart: Chart = {
  title: "x",
  steps: 2,
  tokens: {},
  written: [],
  values: [value],
  nodes: [
    node(0, null, "input", "x"),
    node(1, null, "group", "encoder"),
    node(2, 1, "box", "linear"),
    node(3, null, "group", "step 1", 1, true),
    node(4, 3, "box", "f", 1),
    node(5, null, "group", "step 2", 2, true),
    node(6, 5, "box", "f", 2),
    node(7, null, "output", "output 2", 2),
  ],
  edges: [
    [0, 2, 0],
    [2, 4, 0],
    [2, 6, 0],
    [4, 6, 0],
    [6, 7, 0],
  ],
};

test("cells are decoded, including −∞", () => {
  const grid = new Grid(value);
  assert.deepEqual(
    [0, 1, 2].map((column) => Math.round(grid.at(0, 0, column) * 1000) / 1000),
    [1, -0.5, -Infinity],
  );
  assert.ok(grid.signed && grid.whole);
});

test("a closed group replaces its contents, and one node replaces earlier steps", () => {
  const seen = see(chart, numbers(chart, opened(chart)), 2);
  const edges = seen.edges.map((edge) => `${edge.from}>${edge.to}`);
  assert.deepEqual(edges.sort(), ["0>1", "1>6", "6>7", "earlier>6"].sort());
  assert.ok(seen.earlier);
  assert.deepEqual(
    seen.inside.get(null)!.map((one) => one.number),
    [0, 1, 5, 7],
  );
});

test("a group that is open at one step is open at the next", () => {
  const all = ways(chart);
  assert.equal(all[3], all[5]);
  assert.deepEqual([...numbers(chart, new Set(["/step"]))], [3, 5]);
});

test("a cell of a product is computed from a row and a column", () => {
  const grid = new Grid({ ...value, cells: [1, 3, 3], data: "" });
  assert.deepEqual(origin("product", [grid, grid], grid, 1, 2), [
    { operand: 0, row: 1, column: null },
    { operand: 1, row: null, column: 2 },
  ]);
  assert.deepEqual(origin("linear", [grid, grid], grid, 1, 2), [
    { operand: 0, row: 1, column: null },
    { operand: 1, row: 2, column: null },
  ]);
  assert.deepEqual(origin("", [grid], grid, 0, 0), []);
});

test("text in a drawing stays text", () => {
  assert.equal(toText(h("text", { x: 1 }, 'a < b & "c"')), '<text x="1">a &lt; b &amp; &quot;c&quot;</text>');
});

test("weights are painted from zero to one, and other values up to their largest", () => {
  const flat = paint(0.1, 1, false, "light");
  assert.notEqual(flat, paint(1, 1, false, "light"));
  assert.equal(paint(0.1, 0.1, false, "light"), paint(1, 1, false, "light"));
});

test("rows and columns in Chinese are indices, not ordinals", () => {
  const lines = Object.values(LANGUAGES.zh.explain.rules).map((rule) => fill(rule, { row: 1, column: 3 }));
  assert.ok(
    lines.every((line) => !line.includes("第 1") && !line.includes("第 3")),
    lines.join("\n"),
  );
});
