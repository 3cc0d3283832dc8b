// Numbers, names and keys.

/** Format a weight with two or three significant digits: 0.124, 0.0021, 3.1e-5; a dash if it is not a number. */
export function figure(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 0.001 ? value.toFixed(size >= 0.01 ? 3 : 4) : value.toExponential(1);
}

/** Shorten a long name to its end, to fit in a table row. */
export function brief(name: string): string {
  return name.length <= 28 ? name : `…${name.slice(-27)}`;
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}

/** The direction of an arrow key. */
export const ARROWS: Readonly<Record<string, readonly [rows: number, columns: number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

export type Cell = { row: number; column: number };

/** The cell among rows × columns that an arrow key leads to; null for other keys. */
export function beside(key: string, { row, column }: Cell, rows: number, columns: number): Cell | null {
  const step = ARROWS[key];
  return step ? { row: clamp(row + step[0], 0, rows - 1), column: clamp(column + step[1], 0, columns - 1) } : null;
}

/** Whether a key is pressed together with Ctrl, Alt or the command key: such keys belong to the browser. */
export function modified(event: KeyboardEvent | MouseEvent): boolean {
  return event.ctrlKey || event.metaKey || event.altKey;
}
