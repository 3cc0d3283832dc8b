// A small matrix of weights on a canvas: rows are target words, columns are source words.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { shorten } from "../map/axis_labels.ts";
import { colour, surface } from "../shared/canvas.ts";
import { type Cell, beside, clamp } from "../shared/format.ts";
import { type Scale, type Theme, ramp, shade } from "../shared/palette.ts";
import { show } from "../text/token_spelling.ts";

const FONT = '13px ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';
const MARGIN = 120; // pixels for words at most

interface Matrix {
  rows: readonly string[];
  columns: readonly string[];
  weights: readonly (readonly number[])[];
  theme: Theme;
  scale: Scale;
}

type Layout = { left: number; top: number; cell: number };

type AlignmentMatrixProps = Matrix & { label: string; point: (cell: Cell | null) => void };

export function AlignmentMatrix({ label, point, ...matrix }: AlignmentMatrixProps) {
  const { weights, theme, scale } = matrix;
  const canvas = useRef<HTMLCanvasElement>(null);
  const layout = useRef<Layout>({ left: MARGIN, top: MARGIN, cell: 24 });
  const [at, setAt] = useState<Cell | null>(null);
  const move = (cell: Cell | null): void => {
    if (cell?.row === at?.row && cell?.column === at?.column) return;
    setAt(cell);
    point(cell);
  };
  useLayoutEffect(() => {
    const drawNow = (): void => void (layout.current = draw(canvas.current!, matrix, at) ?? layout.current);
    const sizes = new ResizeObserver(drawNow);
    drawNow();
    sizes.observe(canvas.current!.parentElement!);
    return () => sizes.disconnect();
  }, [weights, theme, scale, at]);
  const under = (event: PointerEvent): Cell | null => cellUnder(event, matrix, layout.current);
  const pressed = (event: KeyboardEvent): void => {
    const { rows, columns } = matrix;
    const next = beside(event.key, at ?? { row: -1, column: -1 }, rows.length, columns.length);
    if (!next) return;
    event.preventDefault();
    move(next);
  };
  return (
    <div class="matrix">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={label}
        onPointerMove={(event) => move(under(event))}
        onPointerDown={(event) => move(under(event))}
        onPointerLeave={() => move(null)}
        onKeyDown={pressed}
      />
    </div>
  );
}

/** The cell under the mouse; column −1 stands for the whole row. */
function cellUnder(event: PointerEvent, { rows, columns }: Matrix, { left, top, cell }: Layout): Cell | null {
  const frame = (event.currentTarget as Element).getBoundingClientRect();
  const column = Math.floor((event.clientX - frame.left - left) / cell);
  const row = Math.floor((event.clientY - frame.top - top) / cell);
  const inside = row >= 0 && row < rows.length && column >= -8 && column < columns.length;
  return inside ? { row, column: Math.max(column, -1) } : null;
}

/** The weight of the strongest colour. */
export function strongestOf(weights: readonly (readonly number[])[]): number {
  return weights.reduce((most, row) => Math.max(most, ...row), 0);
}

function draw(canvas: HTMLCanvasElement, matrix: Matrix, at: Cell | null): Layout | null {
  const { rows, columns, weights, theme, scale } = matrix;
  const layout = computeLayout(canvas, rows, columns);
  const context = layout && surface(canvas);
  if (!layout || !context) return null;
  const { left, top, cell } = layout;
  const strongest = strongestOf(weights);
  const table = ramp(theme);
  weights.forEach((row, r) =>
    row.forEach((weight, c) => {
      context.fillStyle = `rgb(${table[Math.round(255 * shade(weight, strongest, scale))]!.join(",")})`;
      context.fillRect(left + c * cell, top + r * cell, cell - 1, cell - 1);
    }),
  );
  drawWords(context, matrix, layout, at);
  if (!at) return layout;
  context.strokeStyle = colour("mark");
  context.lineWidth = 1.5;
  context.strokeRect(left - 0.5, top + at.row * cell - 0.5, cell * columns.length, cell);
  if (at.column >= 0) context.strokeRect(left + at.column * cell - 0.5, top - 0.5, cell, cell * rows.length);
  return layout;
}

/** Resize the canvas for its words and cells; null while it has no layout. */
function computeLayout(canvas: HTMLCanvasElement, rows: readonly string[], columns: readonly string[]): Layout | null {
  const context = canvas.getContext("2d");
  const room = canvas.parentElement!.clientWidth;
  if (!context || !room) return null;
  context.font = FONT;
  const longest = (words: readonly string[]): number => {
    const widths = words.map((word) => context.measureText(show(word)).width);
    return Math.min(MARGIN, Math.max(...widths, 10) + 14);
  };
  const [left, top] = [longest(rows), longest(columns)];
  const cell = clamp((room - left - 2) / Math.max(columns.length, 1), 14, 34);
  canvas.style.width = `${left + cell * columns.length + 2}px`;
  canvas.style.height = `${top + cell * rows.length + 2}px`;
  return { left, top, cell };
}

function drawWords(
  context: CanvasRenderingContext2D,
  { rows, columns }: Matrix,
  { left, top, cell }: Layout,
  at: Cell | null,
): void {
  const [ink, accent] = [colour("ink"), colour("accent-ink")];
  const measure = (text: string): number => context.measureText(text).width;
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "right";
  rows.forEach((word, r) => {
    context.fillStyle = at?.row === r ? accent : ink;
    context.fillText(shorten(show(word), left - 8, measure), left - 8, top + (r + 0.5) * cell);
  });
  context.textAlign = "left";
  columns.forEach((word, c) => {
    context.save();
    context.translate(left + (c + 0.5) * cell, top - 8);
    context.rotate(-Math.PI / 2);
    context.fillStyle = at?.column === c ? accent : ink;
    context.fillText(shorten(show(word), top - 8, measure), 0, 0);
    context.restore();
  });
}
