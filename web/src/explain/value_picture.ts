// Small pictures of values, with a limited number of cells.

import { type Colour, type Theme, css, ramp } from "../shared/palette.ts";
import type { Grid } from "./chart_model.ts";
import { width } from "./svg_text.ts";

const MOST = { rows: 12, columns: 12, matrices: 3 };
const GAP = 4;

/** Position and size of a picture. */
export interface Frame {
  x: number;
  y: number;
  cell: number;
  rows: number;
  columns: number;
  matrices: number;
  /** Whether it is transposed. */
  turned: boolean;
}

export function frame(grid: Grid, cell: number, turned = false, most?: { rows: number; columns: number }): Frame {
  const [rows, columns] = turned ? [grid.columns, grid.rows] : [grid.rows, grid.columns];
  const matrices = Math.min(grid.count, MOST.matrices);
  return {
    x: 0,
    y: 0,
    cell,
    rows: Math.min(rows, most?.rows ?? MOST.rows),
    columns: Math.min(columns, most?.columns ?? (matrices > 1 ? 8 : MOST.columns)),
    matrices,
    turned,
  };
}

export function sizeOf(frame: Frame): [width: number, height: number] {
  return [frame.matrices * frame.columns * frame.cell + (frame.matrices - 1) * GAP, frame.rows * frame.cell];
}

export function leftOf(frame: Frame, matrix: number): number {
  return frame.x + matrix * (frame.columns * frame.cell + GAP);
}

/** The cell under a point of the drawing. */
export function cellAt(frame: Frame, x: number, y: number): { matrix: number; row: number; column: number } | null {
  const across = frame.columns * frame.cell;
  const matrix = Math.floor((x - frame.x) / (across + GAP));
  const column = Math.floor((x - leftOf(frame, matrix)) / frame.cell);
  const row = Math.floor((y - frame.y) / frame.cell);
  if (matrix < 0 || matrix >= frame.matrices || column < 0 || column >= frame.columns || row < 0 || row >= frame.rows)
    return null;
  return frame.turned ? { matrix, row: column, column: row } : { matrix, row, column };
}

const NEGATIVE: Record<Theme, Colour> = { light: [31, 111, 178], dark: [124, 192, 255] };
const POSITIVE: Record<Theme, Colour> = { light: [190, 50, 90], dark: [240, 100, 135] };
const NOTHING: Record<Theme, Colour> = { light: [246, 244, 239], dark: [42, 40, 48] };
const MASKED: Record<Theme, Colour> = { light: [217, 213, 204], dark: [74, 70, 82] };

/** The colour of a value: the palette of the maps if no value is negative, else blue and red. `scale` has full colour.
 * Not a number has none. */
export function colourOf(value: number, scale: number, signed: boolean, theme: Theme): Colour | null {
  if (Number.isNaN(value)) return null;
  if (value === -Infinity) return MASKED[theme];
  const share = scale > 0 ? Math.max(-1, Math.min(1, value / scale)) : 0;
  if (!signed) return ramp(theme)[Math.round(235 * share) + (theme === "dark" ? 20 : 8)]!;
  const end = (share < 0 ? NEGATIVE : POSITIVE)[theme];
  const strength = Math.abs(share) ** 0.75;
  return NOTHING[theme].map((from, channel) => Math.round(from + (end[channel]! - from) * strength)) as Colour;
}

/** The colour of a value for SVG and CSS. */
export function paint(value: number, scale: number, signed: boolean, theme: Theme): string {
  const colour = colourOf(value, scale, signed, theme);
  return colour === null ? "none" : css(colour);
}

/** The letters of a value and their sizes, as two short lines. */
export function captions(grid: Grid, turned = false): [string, string] {
  const { letters, shape: sizes } = grid.value;
  if (!letters.length) return ["1 number", ""];
  const order = <T>(list: T[]): T[] =>
    turned && list.length > 1 ? [...list.slice(0, -2), ...list.slice(-2).reverse()] : list;
  return [order(letters).join(" "), order(sizes).join("×")];
}

export const CAPTION = 9.5;

export function captionWidth(grid: Grid, turned = false): number {
  return Math.max(...captions(grid, turned).map((line) => width(line, CAPTION, true)));
}
