// The drawing of a chart that was laid out.

import type { ElkPoint } from "elkjs/lib/elk.bundled.js";

import type { Theme } from "../shared/palette.ts";
import { type Box, type Laid, SIZE, type Shown, type Way, turned } from "./chart_layout.ts";
import { CAPTION, captions, drawPicture, sizeOf } from "./value_picture.ts";
import { type Shape, shape, width } from "./svg_shape.ts";

const MONO = 'ui-monospace, "DejaVu Sans Mono", "Noto Sans Mono CJK SC", monospace';
const SANS = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';

export interface Colours {
  paper: string;
  raised: string;
  ink: string;
  soft: string;
  line: string;
  accent: string;
  group: string;
}

export const COLOURS: Record<Theme, Colours> = {
  light: {
    paper: "#fbfaf7",
    raised: "#ffffff",
    ink: "#1d1b22",
    soft: "#686370",
    line: "#d3cec4",
    accent: "#a82a50",
    group: "#f3f0ea",
  },
  dark: {
    paper: "#16151a",
    raised: "#1e1c23",
    ink: "#ece8e1",
    soft: "#a19ba9",
    line: "#46424f",
    accent: "#ff8fa6",
    group: "#1a191f",
  },
};

/** Straight ways with round corners. */
export function path(points: readonly ElkPoint[], radius = 7): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let told = `M${first.x} ${first.y}`;
  rest.forEach((point, place) => {
    const before = place ? rest[place - 1]! : first;
    const after = rest[place + 1];
    if (!after) {
      told += ` L${point.x} ${point.y}`;
      return;
    }
    const towards = (to: ElkPoint): ElkPoint => {
      const [dx, dy] = [to.x - point.x, to.y - point.y];
      const long = Math.hypot(dx, dy) || 1;
      const step = Math.min(radius, long / 2);
      return { x: point.x + (dx / long) * step, y: point.y + (dy / long) * step };
    };
    const [from, to] = [towards(before), towards(after)];
    told += ` L${from.x} ${from.y} Q${point.x} ${point.y} ${to.x} ${to.y}`;
  });
  return told;
}

function text(
  content: string,
  x: number,
  y: number,
  size: number,
  fill: string,
  more: Record<string, string | number> = {},
): Shape {
  return shape("text", { x, y, "font-size": size, fill, ...more }, content);
}

/** As much of an equation as there is room for. */
function fitted(equation: string, room: number): string {
  if (width(equation, SIZE.equation, true) <= room) return equation;
  const letters = Array.from(equation);
  while (letters.length && width(`${letters.join("")}…`, SIZE.equation, true) > room) letters.pop();
  return `${letters.join("").trimEnd()}…`;
}

/** The sign between a picture and the one before it. */
function drawSign(one: Shown, box: Box, colours: Colours): Shape {
  const { place } = one;
  const before = box.pictures[box.pictures.indexOf(one) - 1]!;
  const left = before.place.x + sizeOf(before.place)[0];
  const middle = (Math.max(left, before.middle) + Math.min(place.x, one.middle)) / 2;
  const between = (left + place.x) / 2;
  const x = Math.abs(between - middle) < 12 ? between : middle;
  return text(one.sign, x, place.y + sizeOf(place)[1] / 2 + 5, 14, colours.soft, { "text-anchor": "middle" });
}

function drawShown(one: Shown, box: Box, bottom: number, colours: Colours, theme: Theme): Shape[] {
  const { place, grid } = one;
  const [width, height] = sizeOf(place);
  const token = { "text-anchor": "end", "font-family": MONO };
  const caption = { "text-anchor": "middle", "font-family": MONO };
  const middleOf = (row: number): number => place.y + (row + 0.5) * place.cell + 3;
  const bottomOf = (row: number): number => bottom + (row + 1) * (CAPTION + 2.5);
  const cover = { class: "cover", x: place.x, y: place.y, width, height, fill: "transparent" };
  return [
    drawPicture(grid, place, theme),
    ...one.tokens
      .slice(0, place.rows)
      .map((word, row) => text(word, place.x - 5, middleOf(row), SIZE.token, colours.ink, token)),
    ...(one.sign ? [drawSign(one, box, colours)] : []),
    ...captions(grid, turned(one)).map((line, row) =>
      text(line, one.middle, bottomOf(row), CAPTION, row ? colours.soft : colours.ink, caption),
    ),
    shape("rect", { ...cover, "data-shown": box.pictures.indexOf(one) }),
  ];
}

function drawFrame(box: Box, kind: string, colours: Colours): Shape {
  const output = kind === "output";
  return shape("rect", {
    class: "frame",
    width: box.width,
    height: box.height,
    rx: output || kind === "input" || kind === "earlier" ? 14 : 7,
    stroke: output ? colours.accent : colours.line,
    fill: box.open ? colours.group : colours.raised,
    "stroke-width": output ? 1.6 : 1,
    "stroke-dasharray": kind === "earlier" ? "4 3" : "none",
  });
}

function drawBox(box: Box, theme: Theme): Shape {
  const colours = COLOURS[theme];
  const kind = box.node?.kind ?? "earlier";
  const group = kind === "group";
  const parts: Shape[] = [drawFrame(box, kind, colours)];
  if (!box.open) {
    const bold = kind === "earlier" ? {} : { "font-weight": 600 };
    parts.push(text(box.title, 12, 20, SIZE.title, group ? colours.accent : colours.ink, bold));
    if (group) parts.push(text("▸", box.width - 18, 20, 12, colours.soft));
    if (box.equation) parts.push(text(box.equation, 12, 36, SIZE.equation, colours.soft, { "font-family": MONO }));
    const bottom = Math.max(0, ...box.pictures.map(({ place }) => place.y + sizeOf(place)[1]));
    for (const one of box.pictures) parts.push(...drawShown(one, box, bottom, colours, theme));
  }
  const attributes = { class: `box ${kind}`, transform: `translate(${box.x} ${box.y})`, "data-box": box.id };
  return shape("g", attributes, ...parts);
}

/** The words of an open box, over the ways that cross them. */
function drawHeader(box: Box, theme: Theme): Shape {
  const colours = COLOURS[theme];
  const halo = { stroke: colours.group, "stroke-width": 5, "paint-order": "stroke", "stroke-linejoin": "round" };
  return shape(
    "g",
    { class: "header", transform: `translate(${box.x} ${box.y})`, "pointer-events": "none" },
    text("▾", 12, 21, 12, colours.soft, halo),
    text(box.title, 28, 21, SIZE.title, colours.accent, { "font-weight": 600, ...halo }),
    text(fitted(box.equation, box.width - 36), 28, 37, SIZE.equation, colours.soft, { "font-family": MONO, ...halo }),
  );
}

function drawWay(way: Way, theme: Theme): Shape {
  return shape("path", {
    class: "way",
    d: path(way.points),
    fill: "none",
    stroke: COLOURS[theme].soft,
    "stroke-width": 1.1,
    "stroke-opacity": 0.75,
    "marker-end": "url(#tip)",
    "data-from": way.from,
    "data-to": way.to,
  });
}

export function drawing(laid: Laid, theme: Theme, title: string): Shape {
  const colours = COLOURS[theme];
  const [wide, high] = [Math.ceil(laid.width), Math.ceil(laid.height)];
  const tip = shape(
    "marker",
    { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    shape("path", { d: "M0 0.6 L7.4 4 L0 7.4 z", fill: colours.soft }),
  );
  const open = laid.boxes.filter((box) => box.open);
  const closed = laid.boxes.filter((box) => !box.open);
  return shape(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `0 0 ${wide} ${high}`,
      width: wide,
      height: high,
      "font-family": SANS,
      class: "chart",
    },
    shape("title", {}, title),
    shape("defs", {}, tip),
    shape("rect", { class: "ground", width: wide, height: high, fill: colours.paper }),
    ...open.map((box) => drawBox(box, theme)),
    shape("g", { class: "ways" }, ...laid.ways.map((way) => drawWay(way, theme))),
    ...open.map((box) => drawHeader(box, theme)),
    ...closed.map((box) => drawBox(box, theme)),
  );
}
