// Links between tokens: which of them are shown.

export type Link = { from: number; to: number; weight: number; head?: number };

const MOST_TO = 28;

/** The ends to show: those with the greatest sums of weights, in the order of the text. */
export function ends(links: readonly Link[], most = MOST_TO): number[] {
  const sums = new Map<number, number>();
  for (const { to, weight } of links) sums.set(to, (sums.get(to) ?? 0) + weight);
  const best = [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, most);
  return best.map(([to]) => to).sort((a, b) => a - b);
}
