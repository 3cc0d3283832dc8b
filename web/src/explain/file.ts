// A chart as a file: node explain.js < wish.json > chart.svg

import type { Theme } from "../palette.ts";
import { LANGUAGES, type Language } from "../words.ts";
import { type Chart, see } from "./chart.ts";
import { drawing } from "./drawing.ts";
import { layout } from "./layout.ts";
import { toText } from "./shape.ts";
import { numbers, opened } from "./start.ts";

export interface Wish {
  chart: Chart;
  theme?: Theme;
  language?: Language;
}

export async function svg({ chart, theme = "light", language = "en" }: Wish, ways = opened(chart), step = chart.step ?? 1): Promise<string> {
  const open = numbers(chart, ways);
  const laid = await layout(chart, see(chart, open, step), open, language, LANGUAGES[language].explain.earlier);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${toText(drawing(laid, theme, chart.title))}\n`;
}
