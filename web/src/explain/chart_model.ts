// The chart as sent by the server or stored in a file, and its visible part: the open boxes at one time step.

import type { Language } from "../shared/translations.ts";
import chinese from "./equations.zh.json" with { type: "json" };
import mechanisms from "./mechanisms.zh.json" with { type: "json" };

export interface Value {
  letters: string[];
  shape: number[];
  /** Matrices, rows and columns of the first cells. */
  cells: [number, number, number];
  largest: number;
  /** The value drawn in the strongest colour: 1 for attention weights, else the largest. */
  scale: number;
  /** 16-bit integers, in base64. */
  data: string;
}

export type Operand = { value: number; name: string; sources: number[] };

export type Rule = "" | "product" | "linear" | "pairs" | "row" | "lookup" | "same";

export interface Node {
  number: number;
  parent: number | null;
  kind: "box" | "group" | "input" | "output";
  name: Record<Language, string>;
  equation: string;
  rule: Rule;
  time: number | null;
  value: number | null;
  operands: Operand[];
  calls: string[];
  /** Numbers of the recorded operations. */
  operations: number[];
  open: boolean;
}

export interface Chart {
  title: string;
  nodes: Node[];
  edges: [from: number, to: number, value: number][];
  values: Value[];
  steps: number;
  tokens: Record<string, string[]>;
  written: string[];
  /** The initial step. */
  step?: number;
}

/** The equation of a node. Formulas are the same in every language; those in words are translated. */
export function equationIn(language: Language, { equation }: Node): string {
  return language === "zh" ? ((chinese as Record<string, string>)[equation] ?? equation) : equation;
}

/** The Chinese name of a mechanism; null for English, and for names that are the same in both. */
export function mechanismIn(language: Language, mechanism: string): string | null {
  return language === "zh" ? ((mechanisms as Record<string, string>)[mechanism] ?? null) : null;
}

const MAX_CODE = 32766;

/** The decoded cells of a value. */
export class Grid {
  readonly value: Value;
  readonly count: number;
  readonly rows: number;
  readonly columns: number;
  private readonly codes: Int16Array;

  constructor(value: Value) {
    this.value = value;
    [this.count, this.rows, this.columns] = value.cells;
    const bytes = Uint8Array.from(atob(value.data), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    this.codes = Int16Array.from({ length: bytes.length / 2 }, (_, index) => view.getInt16(2 * index, true));
  }

  at(matrix: number, row: number, column: number): number {
    const code = this.codes[(matrix * this.rows + row) * this.columns + column] ?? 32767;
    if (code === -32768) return -Infinity;
    return code === 32767 ? NaN : (code / MAX_CODE) * this.value.largest;
  }

  get signed(): boolean {
    return this.codes.some((code) => code < 0 && code !== -32768);
  }

  /** Whether all rows and columns are included. */
  get whole(): boolean {
    const [rows, columns] = [1, 1, ...this.value.shape].slice(-2);
    return rows === this.rows && columns === this.columns;
  }
}

const grids = new WeakMap<Value, Grid>();

export function gridOf(chart: Chart, value: number): Grid {
  const data = chart.values[value]!;
  const known = grids.get(data) ?? new Grid(data);
  grids.set(data, known);
  return known;
}

/** A visible node; `earlier` represents all previous steps. */
export type Id = number | "earlier";

export interface Seen {
  /** Visible nodes by their group; null for those without a group. */
  inside: Map<number | null, Node[]>;
  edges: { from: Id; to: Id; value: number; values: number[] }[];
  earlier: boolean;
}

/** The visible part of a chart with these open groups, at this step. */
export function see(chart: Chart, open: ReadonlySet<number>, step: number): Seen {
  const inside = new Map<number | null, Node[]>();
  const shown = new Map<number, Id | null>(); // node → the visible node that represents it
  const drawnAs = ({ number, parent, time }: Node): Id | null => {
    if (parent !== null && shown.get(parent) !== parent) return shown.get(parent)!;
    if (time !== null && time !== step) return time < step ? "earlier" : null;
    return parent === null || open.has(parent) ? number : parent;
  };
  for (const node of chart.nodes) {
    const drawn = drawnAs(node);
    shown.set(node.number, drawn);
    if (drawn === node.number) inside.set(node.parent, [...(inside.get(node.parent) ?? []), node]);
  }
  const merged = new Map<string, Seen["edges"][number]>();
  for (const [first, second, value] of chart.edges) {
    const [from, to] = [shown.get(first) ?? null, shown.get(second) ?? null];
    if (from === null || to === null || from === to || to === "earlier") continue;
    const known = merged.get(`${from} ${to}`);
    if (known) known.values.push(value);
    else merged.set(`${from} ${to}`, { from, to, value, values: [value] });
  }
  const edges = [...merged.values()];
  const read = new Set(edges.map((edge) => edge.from));
  for (const [parent, nodes] of inside) {
    // hide the inputs of other steps
    inside.set(
      parent,
      nodes.filter((node) => node.kind !== "input" || read.has(node.number)),
    );
  }
  return { inside, edges, earlier: read.has("earlier") };
}

/** The cells of an operand from which a cell of the result is computed: a row, a column, or one cell. */
type Part = { operand: number; row: number | null; column: number | null };

export function origin(rule: Rule, operands: readonly Grid[], result: Grid, row: number, column: number): Part[] {
  return partsOf(rule, operands, result, row, column).filter((part) => {
    const grid = operands[part.operand];
    return grid && (part.row ?? 0) < grid.rows && (part.column ?? 0) < grid.columns;
  });
}

function partsOf(rule: Rule, operands: readonly Grid[], result: Grid, row: number, column: number): Part[] {
  const wholeRow = (operand: number, row: number): Part => ({ operand, row, column: null });
  switch (rule) {
    case "product":
      return [wholeRow(0, row), { operand: 1, row: null, column }];
    case "linear":
      return [wholeRow(0, row), wholeRow(1, column)];
    case "pairs": {
      const first = operands.findIndex((grid) => grid.rows === result.rows);
      const last = operands.findLastIndex((grid) => grid.rows === result.columns);
      return [wholeRow(first, row), ...(last > 0 ? [wholeRow(last, column)] : [])];
    }
    case "row":
      return [wholeRow(0, operands[0]?.rows === result.rows ? row : column)];
    case "lookup":
      return [{ operand: 0, row: 0, column: operands[0]?.columns === 1 ? 0 : row }];
    case "same":
      return operands.map((grid, operand) => ({
        operand,
        row: grid.rows === 1 ? 0 : row,
        column: grid.columns === 1 ? 0 : column,
      }));
    case "":
      return [];
  }
}
