// A small matrix of weights with words on both sides, drawn on a canvas: what was written down, what was read across.

import { ARROWS, colour, make, surface } from "./dom.ts";
import { shorten } from "./labels.ts";
import { clamp } from "./levels.ts";
import { type Scale, type Theme, ramp, shade } from "./palette.ts";
import { show } from "./tokens.ts";

const FONT = '13px ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';
const MARGIN = 120; // pixels for words at most

export interface MatrixCell {
  row: number;
  column: number;
}

export class Matrix {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly rows: readonly string[];
  private readonly columns: readonly string[];
  private readonly weights: readonly (readonly number[])[];
  private readonly look: { theme: Theme; scale: Scale };
  private readonly point: (cell: MatrixCell | null) => void;
  private readonly sizes: ResizeObserver;
  private at: MatrixCell | null = null;
  private box = { left: MARGIN, top: MARGIN, cell: 24 };

  constructor(
    label: string, rows: readonly string[], columns: readonly string[], weights: readonly (readonly number[])[],
    look: { theme: Theme; scale: Scale }, point: (cell: MatrixCell | null) => void,
  ) {
    [this.rows, this.columns, this.weights, this.look, this.point] = [rows, columns, weights, look, point];
    this.canvas = make("canvas", {
      tabIndex: 0, attributes: { role: "application", "aria-label": label },
      onpointermove: (event) => this.move(this.under(event)),
      onpointerdown: (event) => this.move(this.under(event)),
      onpointerleave: () => this.move(null),
      onkeydown: (event) => { if (this.pressed(event)) event.preventDefault(); },
    });
    this.element = make("div", "matrix", this.canvas);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  private under(event: PointerEvent): MatrixCell | null {
    const frame = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - frame.left - this.box.left) / this.box.cell);
    const row = Math.floor((event.clientY - frame.top - this.box.top) / this.box.cell);
    const inside = row >= 0 && row < this.rows.length && column >= -8 && column < this.columns.length;
    return inside ? { row, column: Math.max(column, -1) } : null;
  }

  /** Show a cell; column −1 stands for the whole row. */
  move(cell: MatrixCell | null): void {
    if (cell?.row === this.at?.row && cell?.column === this.at?.column) return;
    this.at = cell;
    this.point(cell);
    this.draw();
  }

  private pressed(event: KeyboardEvent): boolean {
    const step = ARROWS[event.key];
    if (!step) return false;
    const from = this.at ?? { row: step[0] ? -step[0] : 0, column: step[1] ? -step[1] : 0 };
    this.move({
      row: clamp(from.row + step[0], 0, this.rows.length - 1),
      column: clamp(from.column + step[1], 0, this.columns.length - 1),
    });
    return true;
  }

  private draw(): void {
    const measured = this.canvas.getContext("2d");
    if (!measured || !this.element.clientWidth) return;
    measured.font = FONT;
    const longest = (words: readonly string[]): number => {
      const widths = words.map((word) => measured.measureText(show(word)).width);
      return Math.min(MARGIN, Math.max(...widths, 10) + 14);
    };
    const [left, top] = [longest(this.rows), longest(this.columns)];
    const cell = clamp((this.element.clientWidth - left - 2) / Math.max(this.columns.length, 1), 14, 34);
    this.box = { left, top, cell };
    this.canvas.style.width = `${left + cell * this.columns.length + 2}px`;
    this.canvas.style.height = `${top + cell * this.rows.length + 2}px`;
    const context = surface(this.canvas);
    if (!context) return;
    const strongest = this.weights.reduce((most, row) => Math.max(most, ...row), 0);
    const table = ramp(this.look.theme);
    this.weights.forEach((row, r) => row.forEach((weight, c) => {
      context.fillStyle = `rgb(${table[Math.round(255 * shade(weight, strongest, this.look.scale))]!.join(",")})`;
      context.fillRect(left + c * cell, top + r * cell, cell - 1, cell - 1);
    }));
    const [ink, accent] = [colour("ink"), colour("accent-ink")];
    const measure = (text: string): number => context.measureText(text).width;
    context.font = FONT;
    context.textBaseline = "middle";
    this.rows.forEach((word, r) => {
      context.textAlign = "right";
      context.fillStyle = this.at?.row === r ? accent : ink;
      context.fillText(shorten(show(word), left - 8, measure), left - 8, top + (r + 0.5) * cell);
    });
    this.columns.forEach((word, c) => {
      context.save();
      context.translate(left + (c + 0.5) * cell, top - 8);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillStyle = this.at?.column === c ? accent : ink;
      context.fillText(shorten(show(word), top - 8, measure), 0, 0);
      context.restore();
    });
    if (!this.at) return;
    context.strokeStyle = colour("mark");
    context.lineWidth = 1.5;
    context.strokeRect(left - 0.5, top + this.at.row * cell - 0.5, cell * this.columns.length, cell);
    if (this.at.column >= 0) {
      context.strokeRect(left + this.at.column * cell - 0.5, top - 0.5, cell, cell * this.rows.length);
    }
  }

  close(): void {
    this.sizes.disconnect();
  }
}
