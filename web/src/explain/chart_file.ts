// Draw a chart to an SVG file. `regard explain --out chart.svg` runs the script of the page in Node.

import type { Theme } from "../shared/palette.ts";
import { LANGUAGES, type Language } from "../shared/translations.ts";
import { type Chart, see } from "./chart_model.ts";
import { drawing } from "./chart_drawing.tsx";
import { layout } from "./chart_layout.ts";
import { toText } from "./svg_text.ts";
import { numbers, opened } from "./open_groups.ts";

/** The request that `regard explain` writes to the standard input. */
type FileRequest = { chart: Chart; theme?: Theme; language?: Language };

export async function svg(
  { chart, theme = "light", language = "en" }: FileRequest,
  ways: ReadonlySet<string> = opened(chart),
  step = chart.step ?? 1,
): Promise<string> {
  const open = numbers(chart, ways);
  const chartLayout = await layout(chart, see(chart, open, step), open, language, LANGUAGES[language].explain.earlier);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${toText(drawing(chartLayout, theme, chart.title))}\n`;
}

/** Read a request from the standard input and write the drawing to the standard output. */
export async function drawFile(): Promise<void> {
  let text = "";
  process.stdin.setEncoding("utf8");
  for await (const part of process.stdin) text += part;
  process.stdout.write(await svg(JSON.parse(text) as FileRequest));
}
