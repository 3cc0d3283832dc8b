// The arithmetic of the zoom. A map of queries × keys is a Deep Zoom image: x counts keys, y counts queries; the
// deepest level has one cell a pixel, and each level above it covers twice as many cells a pixel.

export const TILE = 256;

/** ceil(log2(max(queries, keys))): the level with one cell a pixel. */
export function deepest(queries: number, keys: number): number {
  const longest = Math.max(queries, keys, 1);
  let level = 0;
  while (2 ** level < longest) level += 1; // log2 of a float could be a hair above a whole number
  return level;
}

/** The first level worth asking for: the whole map in one tile. */
export function shallowest(queries: number, keys: number): number {
  return Math.min(Math.log2(TILE), deepest(queries, keys));
}

/** What part of the map a rectangle of the screen shows. */
export interface Sight {
  /** Key at the left edge and query at the top edge, as fractions of cells. */
  left: number;
  top: number;
  /** Pixels of the screen a cell. */
  scale: number;
}

export type Cell = { query: number; key: number };

/** The cell under a point of the screen; null outside the map. */
export function cellAt(sight: Sight, x: number, y: number, queries: number, keys: number): Cell | null {
  const key = Math.floor(sight.left + x / sight.scale);
  const query = Math.floor(sight.top + y / sight.scale);
  return key >= 0 && key < keys && query >= 0 && query < queries ? { query, key } : null;
}

/** How many cells one press of an arrow key moves: one where cells can be told apart, about 8 pixels elsewhere. */
export function stride(scale: number): number {
  return scale >= 4 ? 1 : Math.max(1, Math.round(8 / scale));
}
