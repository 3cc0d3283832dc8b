// Beside the chart: the box that was chosen, with every number that it was given and made.

import type { Theme } from "../palette.ts";
import { figure, make } from "../dom.ts";
import type { Language, Words } from "../words.ts";
import { type Chart, type Grid, type Node, type Part, gridOf, origin } from "./chart.ts";
import { paint } from "./picture.ts";

export interface Cell {
  matrix: number;
  row: number;
  column: number;
}

/** A number as it is shown: few letters, the minus sign a real one. */
export function short(value: number): string {
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e5) return String(value).replace("-", "−");
  const size = Math.abs(value);
  return (size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 0.005 ? value.toFixed(2) : figure(value)).replace("-", "−");
}

/** The name of a place along a dimension: the token there, or its number. */
export function placeName(chart: Chart, letter: string | undefined, place: number): string {
  const token = letter === undefined ? undefined : chart.tokens[letter]?.[place];
  return token === undefined ? String(place) : `“${token}”`;
}

/** Where a number came from, in words. */
export function told(chart: Chart, node: Node, cell: Cell, words: Words): string[] {
  const result = gridOf(chart, node.value!);
  const letters = result.value.letters;
  const [row, column] = [placeName(chart, letters.at(-2), cell.row), placeName(chart, letters.at(-1), cell.column)];
  const lines = [`[${result.value.shape.length > 1 ? `${row}, ` : ""}${column}] = ${short(result.at(cell.matrix, cell.row, cell.column))}`];
  const operands = node.operands.map((operand) => gridOf(chart, operand.value));
  const [first, second] = operands;
  if ((node.rule === "product" || node.rule === "linear") && first && second) {
    lines.push(words.explain.rules[node.rule](row, column));
    const length = first.columns;
    const matrix = (grid: Grid): number => Math.min(cell.matrix, grid.count - 1);
    const pair = (k: number): [number, number] =>
      [first.at(matrix(first), cell.row, k), node.rule === "product" ? second.at(matrix(second), k, cell.column) : second.at(matrix(second), cell.column, k)];
    const terms = Array.from({ length: Math.min(length, 3) }, (_, k) => pair(k).map(short).join("·"));
    const whole = first.value.shape.at(-1)!;
    lines.push(`= ${terms.join(" + ")}${whole > 3 ? " + …" : ""}${node.rule === "linear" && operands[2] ? ` + b` : ""}`);
  } else if (node.rule === "pairs" || node.rule === "row" || node.rule === "same" || node.rule === "lookup") {
    lines.push(words.explain.rules[node.rule](row, column));
  }
  return lines;
}

class Table {
  readonly element: HTMLElement;
  private readonly cells: HTMLTableCellElement[][] = [];

  constructor(chart: Chart, grid: Grid, matrix: number, theme: Theme, label: string, point: (cell: Cell | null) => void) {
    const { signed, value: { letters, scale, shape } } = grid;
    const body = make("tbody");
    for (let row = 0; row < grid.rows; row++) {
      this.cells.push(Array.from({ length: grid.columns }, (_, column) => {
        const value = grid.at(matrix, row, column);
        const cell = make("td", { onpointerenter: () => point({ matrix, row, column }) }, short(value));
        cell.style.background = paint(value, scale, signed, theme);
        cell.classList.toggle("deep", value !== -Infinity && Math.abs(value) > 0.55 * scale);
        return cell;
      }));
      const tokens = chart.tokens[letters.at(-2) ?? ""];
      body.append(make("tr", {}, ...(tokens ? [make("th", { scope: "row" }, tokens[row] ?? String(row))] : []), ...this.cells[row]!));
    }
    const names = chart.tokens[letters.at(-1) ?? ""];
    const corner = chart.tokens[letters.at(-2) ?? ""] ? [make("td")] : [];
    const head = names ? [make("thead", {}, make("tr", {}, ...corner, ...this.cells[0]!.map((_, column) => make("th", { scope: "col" }, names[column] ?? String(column)))))] : [];
    let at: Cell = { matrix, row: 0, column: 0 };
    const table = make("table", {
      tabIndex: 0, onpointerleave: () => point(null), onfocus: () => point(at), onblur: () => point(null),
      onkeydown: (event) => {
        const step = ({ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] } as Record<string, [number, number]>)[event.key];
        if (!step) return;
        event.preventDefault();
        at = { matrix, row: Math.min(Math.max(at.row + step[0], 0), grid.rows - 1), column: Math.min(Math.max(at.column + step[1], 0), grid.columns - 1) };
        point(at);
      },
      attributes: { "aria-label": `${label} ${letters.join(" ")} ${shape.join("×")}` },
    }, ...head, body);
    this.element = make("div", "numbers", table);
  }

  mark(part: { row: number | null; column: number | null } | null): void {
    this.cells.forEach((line, row) => line.forEach((cell, column) => {
      const inside = part !== null && (part.row === null || part.row === row) && (part.column === null || part.column === column);
      cell.classList.toggle("from", inside);
    }));
  }
}

export class Panel {
  readonly element = make("aside", "panel");
  private readonly line = make("p", { className: "told", attributes: { role: "status", "aria-live": "polite" } });
  private operands: Table[] = [];
  private result: Table | null = null;
  private node: Node | null = null;
  private readonly chart: Chart;
  private readonly words: Words;
  private readonly pointed: (node: Node, cell: Cell | null) => void;

  constructor(chart: Chart, words: Words, pointed: (node: Node, cell: Cell | null) => void) {
    [this.chart, this.words, this.pointed] = [chart, words, pointed];
    this.element.append(make("p", "hint", words.explain.choose));
  }

  show(node: Node, language: Language, theme: Theme, open: boolean | null, toggle: () => void): void {
    const { chart, words } = this;
    this.node = node;
    const matrix = 0;
    const silent = (): void => {};
    const operands = node.operands.map((operand) => gridOf(chart, operand.value));
    this.operands = operands.map((grid) => new Table(chart, grid, Math.min(matrix, grid.count - 1), theme, words.explain.given, silent));
    const result = node.value === null ? null : gridOf(chart, node.value);
    this.result = result && new Table(chart, result, matrix, theme, words.explain.made, (cell) => { this.mark(cell); this.pointed(node, cell); });
    const card = (name: string, grid: Grid, table: Table): HTMLElement => {
      const { letters, shape } = grid.value;
      const cut = grid.whole && grid.count * grid.rows * grid.columns === shape.reduce((a, b) => a * b, 1);
      return make("section", "card",
        make("h3", {}, make("span", {}, name), make("code", {}, letters.length ? `${letters.join(" ")} = ${shape.join("×")}` : "1")),
        table.element, cut ? null : make("p", "hint", words.explain.part(grid.rows, grid.columns)));
    };
    const named = node.operands.map((operand, place) => operand.name || this.from(operand.sources, language) || `${words.explain.given} ${place + 1}`);
    this.element.replaceChildren(
      make("header", {},
        make("h2", {}, node.name[language]),
        node.equation ? make("p", "equation", node.equation) : null,
        open === null ? null : make("button", { type: "button", className: "main", onclick: toggle }, open ? words.explain.close : words.explain.open)),
      this.line,
      ...(result && this.result ? [card(words.explain.made, result, this.result)] : []),
      ...operands.map((grid, place) => card(named[place]!, grid, this.operands[place]!)),
      ...(node.calls.length ? [make("p", "hint calls", `${words.explain.calls} `, make("code", {}, [...new Set(node.calls)].join(", ")))] : []));
    this.mark(null);
  }

  private from(sources: readonly number[], language: Language): string {
    return [...new Set(sources.map((source) => this.chart.nodes[source]!.name[language]))].slice(0, 3).join(", ");
  }

  /** Show where a cell of the result came from. */
  mark(cell: Cell | null): void {
    const { node, chart } = this;
    this.line.textContent = "\u00a0";
    this.result?.mark(cell);
    for (const table of this.operands) table.mark(null);
    if (!node || !cell || node.value === null) return;
    this.line.textContent = told(chart, node, cell, this.words).join("  ·  ");
    const operands = node.operands.map((operand) => gridOf(chart, operand.value));
    const parts: Part[] = origin(node.rule, operands, gridOf(chart, node.value), cell.row, cell.column);
    for (const part of parts) this.operands[part.operand]?.mark(part);
  }
}
