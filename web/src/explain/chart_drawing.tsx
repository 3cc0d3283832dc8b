// Draw a chart from its layout.

import type { ElkPoint } from "elkjs/lib/elk.bundled.js";
import { type ComponentChildren, type SVGAttributes, type VNode, toChildArray } from "preact";

import type { Theme } from "../shared/palette.ts";
import { type Box, type ChartLayout, SIZE, type Shown, turned } from "./chart_layout.ts";
import type { Grid } from "./chart_model.ts";
import { width } from "./svg_text.ts";
import { CAPTION, type Frame, captions, leftOf, paint, sizeOf } from "./value_picture.ts";

const MONO = 'ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';
const SANS = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';

const LIGHT = {
  paper: "#fbfaf7",
  raised: "#ffffff",
  ink: "#1d1b22",
  soft: "#686370",
  line: "#d3cec4",
  accent: "#a82a50",
  group: "#f3f0ea",
};
const DARK: typeof LIGHT = {
  paper: "#16151a",
  raised: "#1e1c23",
  ink: "#ece8e1",
  soft: "#a19ba9",
  line: "#46424f",
  accent: "#ff8fa6",
  group: "#1a191f",
};
const COLOURS = { light: LIGHT, dark: DARK };

type TextAttributes = SVGAttributes<SVGTextElement>;
type BoxAttributes = SVGAttributes<SVGGElement>;

/** An SVG path of straight lines with rounded corners. */
function path([first, ...rest]: readonly ElkPoint[], radius = 7): string {
  if (!first) return "";
  const corners = rest.map((point, index) => {
    const [before, after] = [rest[index - 1] ?? first, rest[index + 1]];
    if (!after) return ` L${point.x} ${point.y}`;
    const towards = (to: ElkPoint): string => {
      const [dx, dy] = [to.x - point.x, to.y - point.y];
      const long = Math.hypot(dx, dy) || 1;
      const step = Math.min(radius, long / 2);
      return `${point.x + (dx / long) * step} ${point.y + (dy / long) * step}`;
    };
    return ` L${towards(before)} Q${point.x} ${point.y} ${towards(after)}`;
  });
  return `M${first.x} ${first.y}${corners.join("")}`;
}

function text(content: string, x: number, y: number, size: number, fill: string, more: TextAttributes = {}): VNode {
  return (
    <text x={x} y={y} font-size={size} fill={fill} {...more}>
      {content}
    </text>
  );
}

/** Truncate an equation to the available width. */
function fitted(equation: string, room: number): string {
  if (width(equation, SIZE.equation, true) <= room) return equation;
  const letters = Array.from(equation);
  while (letters.length && width(`${letters.join("")}…`, SIZE.equation, true) > room) letters.pop();
  return `${letters.join("").trimEnd()}…`;
}

/** The cells of a value. */
function drawCells(grid: Grid, area: Frame, theme: Theme): VNode {
  const { signed, value } = grid;
  const cells: VNode[] = [];
  const side = area.cell - (area.cell > 6 ? 1 : 0.5);
  for (let matrix = 0; matrix < area.matrices; matrix++) {
    for (let row = 0; row < area.rows; row++) {
      for (let column = 0; column < area.columns; column++) {
        const number = area.turned ? grid.at(matrix, column, row) : grid.at(matrix, row, column);
        const [x, y] = [leftOf(area, matrix) + column * area.cell, area.y + row * area.cell];
        cells.push(<rect x={x} y={y} width={side} height={side} fill={paint(number, value.scale, signed, theme)} />);
      }
    }
  }
  return (
    <g class="picture" shape-rendering="crispEdges">
      {cells}
    </g>
  );
}

/** The operator between a picture and the previous one. */
function drawSign(one: Shown, box: Box, fill: string): VNode {
  const { area } = one;
  const before = box.pictures[box.pictures.indexOf(one) - 1]!;
  const left = before.area.x + sizeOf(before.area)[0];
  const middle = (Math.max(left, before.middle) + Math.min(area.x, one.middle)) / 2;
  const between = (left + area.x) / 2;
  const x = Math.abs(between - middle) < 12 ? between : middle;
  return text(one.sign, x, area.y + sizeOf(area)[1] / 2 + 5, 14, fill, { "text-anchor": "middle" });
}

function drawShown(one: Shown, index: number, box: Box, bottom: number, theme: Theme): ComponentChildren[] {
  const { ink, soft } = COLOURS[theme];
  const { area, grid } = one;
  const [width, height] = sizeOf(area);
  const anchored = (anchor: "start" | "middle" | "end"): TextAttributes => ({
    "text-anchor": anchor,
    "font-family": MONO,
  });
  const token = (word: string, row: number): VNode =>
    text(word, area.x - 5, area.y + (row + 0.5) * area.cell + 3, SIZE.token, ink, anchored("end"));
  const number = (value: string, row: number): VNode =>
    text(value, area.x + width + 5, area.y + (row + 0.5) * area.cell + 3, SIZE.token, soft, anchored("start"));
  const caption = (line: string, row: number): VNode =>
    text(line, one.middle, bottom + (row + 1) * (CAPTION + 2.5), CAPTION, row ? soft : ink, anchored("middle"));
  return [
    drawCells(grid, area, theme),
    one.tokens.slice(0, area.rows).map(token),
    one.numbers.slice(0, area.rows).map(number),
    one.sign && drawSign(one, box, soft),
    captions(grid, turned(one)).map(caption),
    <rect class="cover" x={area.x} y={area.y} width={width} height={height} fill="transparent" data-shown={index} />,
  ];
}

function drawFrame(box: Box, kind: string, theme: Theme): VNode {
  const { accent, line, group, raised } = COLOURS[theme];
  const output = kind === "output";
  return (
    <rect
      class="frame"
      width={box.width}
      height={box.height}
      rx={output || kind === "input" || kind === "earlier" ? 14 : 7}
      stroke={output ? accent : line}
      fill={box.open ? group : raised}
      stroke-width={output ? 1.6 : 1}
      stroke-dasharray={kind === "earlier" ? "4 3" : "none"}
    />
  );
}

/** The contents of a closed box. */
function drawContents(box: Box, kind: string, theme: Theme): ComponentChildren[] {
  const { accent, ink, soft } = COLOURS[theme];
  const group = kind === "group";
  const bottom = Math.max(0, ...box.pictures.map(({ area }) => area.y + sizeOf(area)[1]));
  return [
    text(box.title, 12, 20, SIZE.title, group ? accent : ink, kind === "earlier" ? {} : { "font-weight": 600 }),
    group && text("▸", box.width - 18, 20, 12, soft),
    box.equation && text(box.equation, 12, 36, SIZE.equation, soft, { "font-family": MONO }),
    box.pictures.map((one, index) => drawShown(one, index, box, bottom, theme)),
  ];
}

/** The texts of a closed box, in the order in which they are drawn. */
export function textsOf({ title, equation, pictures }: Box): string[] {
  const shown = pictures.flatMap((one) => [
    ...one.tokens.slice(0, one.area.rows),
    ...one.numbers.slice(0, one.area.rows),
    one.sign,
    ...captions(one.grid, turned(one)),
  ]);
  return [title, equation, ...shown].filter(Boolean);
}

/** A box. On the page, spaces separate its texts, as in its label; SVG does not draw them. */
function drawBox(box: Box, theme: Theme, more: BoxAttributes): VNode {
  const kind = box.node?.kind ?? "earlier";
  const contents = box.open ? [] : drawContents(box, kind, theme);
  return (
    <g
      key={`box ${box.id}`}
      class={`box ${kind}`}
      transform={`translate(${box.x} ${box.y})`}
      data-box={box.id}
      {...more}>
      {drawFrame(box, kind, theme)}
      {more["aria-label"] ? toChildArray(contents).flatMap((part) => [part, " "]) : contents}
    </g>
  );
}

/** The title of an open box, drawn above the edges that cross it. */
function drawHeader(box: Box, theme: Theme): VNode {
  const { group, soft, accent } = COLOURS[theme];
  const halo = { stroke: group, "stroke-width": 5, "paint-order": "stroke", "stroke-linejoin": "round" } as const;
  const equation = fitted(box.equation, box.width - 36);
  return (
    <g class="header" transform={`translate(${box.x} ${box.y})`} pointer-events="none">
      {text("▾", 12, 21, 12, soft, halo)}
      {text(box.title, 28, 21, SIZE.title, accent, { "font-weight": 600, ...halo })}
      {text(equation, 28, 37, SIZE.equation, soft, { "font-family": MONO, ...halo })}
    </g>
  );
}

/** Draw a chart. `more` returns additional attributes of each box. */
export function drawing(
  layout: ChartLayout,
  theme: Theme,
  title: string,
  more: (box: Box) => BoxAttributes = () => ({}),
) {
  const { soft, paper } = COLOURS[theme];
  const [wide, high] = [Math.ceil(layout.width), Math.ceil(layout.height)];
  const open = layout.boxes.filter((box) => box.open);
  const closed = layout.boxes.filter((box) => !box.open);
  const way = { fill: "none", stroke: soft, "stroke-width": 1.1, "stroke-opacity": 0.75 };
  return (
    <svg
      xmlns="http://www.w3.org/2000/svg"
      viewBox={`0 0 ${wide} ${high}`}
      width={wide}
      height={high}
      font-family={SANS}
      class="chart">
      <title>{title}</title>
      <defs>
        <marker id="tip" viewBox="0 0 8 8" refX={7} refY={4} markerWidth={7} markerHeight={7} orient="auto">
          <path d="M0 0.6 L7.4 4 L0 7.4 z" fill={soft} />
        </marker>
      </defs>
      <rect class="ground" width={wide} height={high} fill={paper} />
      {open.map((box) => drawBox(box, theme, more(box)))}
      <g class="ways">
        {layout.ways.map(({ points, from, to }) => (
          <path class="way" d={path(points)} {...way} marker-end="url(#tip)" data-from={from} data-to={to} />
        ))}
      </g>
      {open.map((box) => drawHeader(box, theme))}
      {closed.map((box) => drawBox(box, theme, more(box)))}
    </svg>
  );
}
