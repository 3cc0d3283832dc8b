// Texts for the values of a chart: a value, the name of a position, and the origin of a value.

import { figure } from "../shared/format.ts";
import { type Words, fill } from "../shared/translations.ts";
import { type Chart, type Grid, type Node, gridOf } from "./chart_model.ts";

export type Cell = { matrix: number; row: number; column: number };

/** Format a number with few characters and a minus sign (U+2212). */
export function short(value: number): string {
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e5) return String(value).replace("-", "−");
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return (size >= 0.005 ? value.toFixed(digits) : figure(value)).replace("-", "−");
}

/** The name of a position along a dimension: the token there, or its number. */
function positionName(chart: Chart, letter: string | undefined, position: number): string {
  const token = letter === undefined ? undefined : chart.tokens[letter]?.[position];
  return token === undefined ? String(position) : `“${token}”`;
}

/** The first terms of a product of matrices. */
function terms(node: Node, first: Grid, second: Grid, biased: boolean, cell: Cell): string {
  const matrix = (grid: Grid): number => Math.min(cell.matrix, grid.count - 1);
  const factors = (k: number): [number, number] => {
    const [row, column] = node.rule === "product" ? [k, cell.column] : [cell.column, k];
    return [first.at(matrix(first), cell.row, k), second.at(matrix(second), row, column)];
  };
  const shown = Array.from({ length: Math.min(first.columns, 3) }, (_, k) => factors(k).map(short).join("·"));
  const more = first.value.shape.at(-1)! > 3 ? " + …" : "";
  return `= ${shown.join(" + ")}${more}${node.rule === "linear" && biased ? " + b" : ""}`;
}

/** Lines that describe the origin of a value. */
export function origins(chart: Chart, node: Node, cell: Cell, words: Words): string[] {
  const result = gridOf(chart, node.value!);
  const { letters, shape } = result.value;
  const row = positionName(chart, letters.at(-2), cell.row);
  const column = positionName(chart, letters.at(-1), cell.column);
  const index = shape.length > 1 ? `${row}, ${column}` : column;
  const lines = [`[${index}] = ${short(result.at(cell.matrix, cell.row, cell.column))}`];
  const operands = node.operands.map((operand) => gridOf(chart, operand.value));
  const [first, second, bias] = operands;
  if (node.rule === "product" || node.rule === "linear") {
    if (!first || !second) return lines;
    return [
      ...lines,
      fill(words.explain.rules[node.rule], { row, column }),
      terms(node, first, second, bias !== undefined, cell),
    ];
  }
  return node.rule === "" ? lines : [...lines, fill(words.explain.rules[node.rule], { row, column })];
}
