// Draw the axis labels and the overlay of the map: the hovered cell, the selected query, its strongest keys.

import { colour, surface } from "../shared/canvas.ts";
import { shorten, ticks } from "./axis_labels.ts";
import type { Cell, Sight } from "./zoom_levels.ts";
import { show } from "../text/token_spelling.ts";

interface Axis {
  tokens: readonly string[] | null;
  total: number;
  /** Entries whose labels are always shown. */
  chosen: readonly number[];
  pointed: number | null;
}

const FONT = '12px ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';
const SMALL = FONT.replace("12px", "10px");
const GAP = 15; // pixels from one label to the next

/** The labels of one axis. Across the top they stand upright; down the left they end at the map's edge. */
export function drawAxis(canvas: HTMLCanvasElement, axis: Axis, first: number, scale: number, across: boolean): void {
  const context = surface(canvas);
  if (!context) return;
  const [long, deep] = across ? [canvas.clientWidth, canvas.clientHeight] : [canvas.clientHeight, canvas.clientWidth];
  const [ink, soft, accent] = [colour("ink"), colour("soft"), colour("accent-ink")];
  context.font = FONT;
  context.textBaseline = "middle";
  const measure = (text: string): number => context.measureText(text).width;
  const taken: number[] = [];
  const put = (entry: number, fill: string): void => {
    const middle = (entry + 0.5 - first) * scale;
    if (middle < -1 || middle > long + 1) return;
    const along = Math.min(Math.max(middle, GAP / 2), long - GAP / 2);
    if (taken.some((other) => Math.abs(other - along) < GAP - 1)) return;
    taken.push(along);
    const token = axis.tokens?.[entry];
    const text = shorten(token === undefined ? String(entry) : show(token), deep - 12, measure);
    context.save();
    context.translate(across ? along : deep - 7, across ? deep - 7 : along);
    if (across) context.rotate(-Math.PI / 2);
    context.textAlign = across ? "left" : "right";
    context.fillStyle = fill;
    context.fillText(text, 0, 0);
    const width = measure(text);
    context.font = SMALL;
    if (token !== undefined && width + measure(String(entry)) + 24 < deep) {
      context.fillStyle = soft;
      context.fillText(String(entry), across ? width + 6 : 12 - deep + measure(String(entry)), 0);
    }
    context.restore();
  };
  // hovered and selected entries come first; others are added if they fit
  if (axis.pointed !== null) put(axis.pointed, accent);
  for (const entry of axis.chosen) put(entry, accent);
  for (const entry of ticks(first, long, scale, axis.total, GAP)) put(entry, ink);
}

type Marks = { pointed: Cell | null; query: number | null; keys: readonly number[] };

/** Draw the overlay of the map. Lines are thin at any zoom; a cell is framed if it is large enough. */
export function drawMarks(canvas: HTMLCanvasElement, sight: Sight, marks: Marks, queries: number, keys: number): void {
  const context = surface(canvas);
  if (!context) return;
  const { scale } = sight;
  const x = (key: number): number => (key - sight.left) * scale;
  const y = (query: number): number => (query - sight.top) * scale;
  const [left, right] = [Math.max(0, x(0)), Math.min(canvas.clientWidth, x(keys))];
  const [top, bottom] = [Math.max(0, y(0)), Math.min(canvas.clientHeight, y(queries))];
  const line = (...[x1, y1, x2, y2]: [number, number, number, number]): void => {
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
  };
  context.strokeStyle = colour("line");
  context.strokeRect(x(0) - 0.5, y(0) - 0.5, keys * scale + 1, queries * scale + 1);
  if (marks.query !== null) {
    const middle = y(marks.query + 0.5);
    context.strokeStyle = colour("mark");
    context.lineWidth = 1;
    if (scale >= 4) context.strokeRect(left - 0.5, y(marks.query) - 0.5, right - left + 1, scale + 1);
    else line(left, middle, right, middle);
    drawKeys(context, marks.keys.map(x), y(marks.query), scale);
  }
  if (!marks.pointed) return;
  const { query, key } = marks.pointed;
  context.strokeStyle = colour("cross");
  context.lineWidth = 1;
  line(x(key + 0.5), top, x(key + 0.5), bottom);
  line(left, y(query + 0.5), right, y(query + 0.5));
  if (scale < 5) return;
  context.strokeStyle = colour("ink");
  context.lineWidth = 1.5;
  context.strokeRect(x(key), y(query), scale, scale);
}

/** Frames around keys of one query, or circles while cells are small. */
function drawKeys(context: CanvasRenderingContext2D, lefts: readonly number[], top: number, scale: number): void {
  context.lineWidth = 2;
  for (const left of lefts) {
    context.beginPath();
    if (scale >= 10) context.roundRect(left - 1, top - 1, scale + 2, scale + 2, 3);
    else context.arc(left + scale / 2, top + scale / 2, 5, 0, 2 * Math.PI);
    context.stroke();
  }
}
