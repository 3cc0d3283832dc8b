// The weights of a head in a saved page: all of them, or the strongest of each query and of each key.

/** Packed numbers: weights as float16; positions as uint32, in rows of `top`. */
export type StoredWeights =
  | { queries: number; keys: number; all: string }
  | { top: number; query: { positions: string; weights: string }; key: { positions: string; weights: string } };

/** The strongest weights, largest first, and all weights if they are stored. */
export type Strongest = { positions: number[]; values: number[]; all: number[] | null };

export interface HeadWeights {
  row(query: number, top: number): Strongest;
  column(key: number, top: number): Strongest;
}

/** Read packed bytes: base64 of zlib. */
export async function unpacked(text: string): Promise<ArrayBuffer> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let index = 0; index < letters.length; index += 1) bytes[index] = letters.charCodeAt(index);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

/** Read numbers in half precision. */
export function halfPrecision(file: ArrayBuffer): Float32Array {
  return Float32Array.from(new Uint16Array(file), (code) => {
    const [exponent, fraction] = [(code >> 10) & 31, code & 1023];
    const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
    return exponent === 31 ? NaN : code >> 15 ? -size : size;
  });
}

export async function readWeights(stored: StoredWeights): Promise<HeadWeights> {
  if ("all" in stored) {
    const { queries, keys } = stored;
    const all = halfPrecision(await unpacked(stored.all));
    const column = (key: number): number[] => Array.from({ length: queries }, (_, query) => all[query * keys + key]!);
    return {
      row: (query, top) => strongest([...all.subarray(query * keys, (query + 1) * keys)], top),
      column: (key, top) => strongest(column(key), top),
    };
  }
  const [row, column] = await Promise.all([stored.query, stored.key].map((side) => lists(side, stored.top)));
  return { row: row!, column: column! };
}

function strongest(all: number[], top: number): Strongest {
  const order = [...all.keys()].filter((position) => all[position]! > 0).sort((a, b) => all[b]! - all[a]! || a - b);
  const positions = order.slice(0, top);
  return { positions, values: positions.map((position) => all[position]!), all };
}

async function lists(
  side: { positions: string; weights: string },
  stored: number,
): Promise<(at: number, top: number) => Strongest> {
  const positions = new Uint32Array(await unpacked(side.positions));
  const weights = halfPrecision(await unpacked(side.weights));
  return (at, top) => {
    const values = [...weights.subarray(at * stored, (at + 1) * stored)].filter((weight) => weight > 0).slice(0, top);
    return { positions: [...positions.subarray(at * stored, at * stored + values.length)], values, all: null };
  };
}
