// Colour scales with the weights at their ends.

import { fill } from "./translations.ts";
import { type Scale, type Theme, WEAKEST, ramp } from "./palette.ts";
import { figure } from "./format.ts";
import type { Store } from "../shell/store.ts";

interface LegendProps {
  app: Store;
  low: number;
  high: number;
  /** Colours from the weakest to the strongest; default: those of tokens. */
  colours?: string;
}

export function Legend({ app, low, high, colours }: LegendProps) {
  const ends = { low: figure(low), high: high === 1 ? "1" : figure(high) };
  return (
    <div class="legend" role="img" aria-label={fill(app.words.map.legend, ends)}>
      <span>{ends.low}</span>
      <i style={colours === undefined ? undefined : { background: colours }} />
      <span>{ends.high}</span>
    </div>
  );
}

/** The weight of the weakest colour, if the strongest is `high`. */
export function lowest(high: number, scale: Scale): number {
  return scale === "linear" ? 0 : high * WEAKEST;
}

/** The palette of maps as a CSS gradient. */
export function gradient(theme: Theme): string {
  const table = ramp(theme);
  const colours = [0, 32, 64, 96, 128, 160, 192, 224, 255].map((entry) => `rgb(${table[entry]!.join(" ")})`);
  return `linear-gradient(to right, ${colours.join(", ")})`;
}
