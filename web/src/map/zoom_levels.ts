// Zoom levels. A map of queries × keys is a Deep Zoom image: x is the key, y is the query. The deepest level has one
// cell per pixel, and each level above it has twice as many cells per pixel.

export const TILE = 256;

/** ceil(log2(max(queries, keys))): the level with one cell per pixel. */
export function deepest(queries: number, keys: number): number {
  const longest = Math.max(queries, keys, 1);
  let level = 0;
  while (2 ** level < longest) level += 1; // log2 may be slightly above an integer due to rounding
  return level;
}

/** The first useful level: the whole map in one tile. */
export function shallowest(queries: number, keys: number): number {
  return Math.min(Math.log2(TILE), deepest(queries, keys));
}

/** The part of the map in a rectangle of the screen. */
export interface Sight {
  /** Key at the left edge and query at the top edge, as fractions of cells. */
  left: number;
  top: number;
  /** Screen pixels per cell. */
  scale: number;
}

export type Cell = { query: number; key: number };

/** The cell under a point of the screen; null outside the map. */
export function cellAt(sight: Sight, x: number, y: number, queries: number, keys: number): Cell | null {
  const key = Math.floor(sight.left + x / sight.scale);
  const query = Math.floor(sight.top + y / sight.scale);
  return key >= 0 && key < keys && query >= 0 && query < queries ? { query, key } : null;
}

/** Number of cells per press of an arrow key: one if cells are large enough, else about 8 pixels. */
export function stride(scale: number): number {
  return scale >= 4 ? 1 : Math.max(1, Math.round(8 / scale));
}
