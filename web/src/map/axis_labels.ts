// Labels along an axis: as many as fit, at round distances, so that they stay in place while one pans.

/** The least of 1, 2, 5, 10, 20, … cells that is at least `gap` pixels wide. */
export function spacing(scale: number, gap: number): number {
  const wanted = gap / scale;
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) {
      if (digit * power >= wanted) return digit * power;
    }
  }
}

/** The entries to label: multiples of the spacing among `total` that are seen from `first` over `pixels` of screen. */
export function ticks(first: number, pixels: number, scale: number, total: number, gap: number): number[] {
  if (!(scale > 0) || total < 1) return [];
  const step = spacing(scale, gap);
  const start = Math.max(0, Math.ceil(Math.floor(first) / step) * step);
  const end = Math.min(total, Math.ceil(first + pixels / scale));
  const labels: number[] = [];
  for (let entry = start; entry < end; entry += step) labels.push(entry);
  return labels;
}

/** The longest beginning of a text that fits, with … where something was cut; by code points: no letter is halved. */
export function shorten(text: string, width: number, measure: (text: string) => number): string {
  if (measure(text) <= width) return text;
  const letters = Array.from(text);
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (measure(letters.slice(0, middle).join("") + "…") <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? letters.slice(0, low).join("") + "…" : "";
}
