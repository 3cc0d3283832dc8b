// Layout of a chart: the contents and size of each box, then positions and edges computed by ELK.

import type { ElkExtendedEdge, ElkNode, ElkPoint } from "elkjs/lib/elk.bundled.js";

import type { Language } from "../shared/translations.ts";
import { type Chart, type Grid, type Id, type Node, type Seen, equationIn, gridOf } from "./chart_model.ts";
import { CAPTION, type Frame, captionWidth, frame, sizeOf } from "./value_picture.ts";
import { width } from "./svg_text.ts";
import { short } from "./value_text.ts";

export const SIZE = { title: 13, equation: 10.5, token: 9.5 };
const PAD = 12;
const CELL = 7;
const TOKENS = 24;

/** A picture in a box: an operand or the result. */
export interface Shown {
  grid: Grid;
  area: Frame;
  /** Index of the operand; null for the result. */
  operand: number | null;
  /** The operator before it: · + = → */
  sign: string;
  /** Labels to the left of the rows. */
  tokens: string[];
  /** Values to the right of the rows. */
  numbers: string[];
  middle: number;
}

export interface Box {
  id: Id;
  node: Node | null;
  title: string;
  equation: string;
  open: boolean;
  x: number;
  y: number;
  width: number;
  height: number;
  pictures: Shown[];
}

export type Way = { from: Id; to: Id; points: ElkPoint[]; values: number[] };

export type ChartLayout = { width: number; height: number; boxes: Box[]; ways: Way[] };

/** Whether the letters of a transposed picture are swapped. Those of ids with token labels are not. */
export function turned(one: Pick<Shown, "area" | "tokens">): boolean {
  return one.area.turned && !one.tokens.length;
}

/** The labels of an input, or of predictions: the tokens or classes, and the values of predictions. */
function labelsOf(chart: Chart, node: Node, result: Grid): Pick<Shown, "tokens" | "numbers"> & { turned: boolean } {
  const letter = (back: number): string => result.value.letters.at(-back) ?? "";
  const predicted = node.kind === "output" && letter(1) === "K" && result.rows === 1 && result.whole;
  if (node.kind !== "input" && !predicted) return { turned: false, tokens: [], numbers: [] };
  const turned = result.rows === 1 && letter(1) in chart.tokens; // a column, with a token beside each cell
  const tokens = chart.tokens[letter(turned ? 1 : 2)] ?? [];
  return { turned, tokens, numbers: predicted ? tokens.map((_, index) => short(result.at(0, 0, index))) : [] };
}

/** The pictures of a box: its operands, if cells can be traced to them, and its result. */
function picturesOf(chart: Chart, node: Node): Omit<Shown, "middle">[] {
  if (node.value === null) return [];
  const result = gridOf(chart, node.value);
  const grids = node.operands.map((operand) => gridOf(chart, operand.value));
  const { turned, tokens, numbers } = labelsOf(chart, node, result);
  const image = node.kind === "input" && result.value.shape.length === 4;
  const cell = tokens.length ? 11 : image && result.columns > 12 ? 4 : CELL;
  const most = tokens.length ? { rows: TOKENS, columns: 12 } : image ? { rows: 32, columns: 32 } : undefined;
  const output = (sign: string): Omit<Shown, "middle"> => ({
    grid: result,
    area: frame(result, cell, turned, most),
    operand: null,
    sign,
    tokens,
    numbers,
  });
  const input = (operand: number, sign = "", turned = false): Omit<Shown, "middle"> => ({
    grid: grids[operand]!,
    area: frame(grids[operand]!, CELL, turned),
    operand,
    sign,
    tokens: [],
    numbers: [],
  });
  const sameSize = (grid: Grid | undefined): boolean =>
    grid !== undefined && grid.rows === result.rows && grid.columns === result.columns;
  if (node.rule === "product" && grids[1]) return [input(0), input(1, "·"), output("=")];
  if (node.rule === "linear" && grids[1]) return [input(0), input(1, "·", true), output("=")];
  if (node.rule === "row" && sameSize(grids[0])) return [input(0), output("→")];
  const sign = /[+−⊙]/.exec(node.equation)?.[0];
  if (node.kind === "box" && node.rule === "same" && sign && grids.length === 2 && grids.every(sameSize))
    return [input(0), input(1, sign), output("=")];
  return [output("")];
}

function labelWidth(texts: readonly string[]): number {
  return texts.length ? Math.max(...texts.map((text) => width(text, SIZE.token, true))) + 6 : 0;
}

function boxOf(chart: Chart, node: Node, open: boolean, language: Language): Box {
  const [title, equation] = [node.name[language], equationIn(language, node)];
  const box: Box = { id: node.number, node, title, equation, open, x: 0, y: 0, width: 0, height: 0, pictures: [] };
  const titleWidth = width(title, SIZE.title) + (node.kind === "group" ? 22 : 0);
  const equationWidth = equation ? width(equation, SIZE.equation, true) : 0;
  if (open) {
    box.width = Math.max(titleWidth, equationWidth) + 40;
    return box;
  }
  let [x, tallest] = [PAD, 0];
  const top = equation ? 46 : 28;
  for (const one of picturesOf(chart, node)) {
    const [across, down] = sizeOf(one.area);
    const labels = labelWidth(one.tokens.slice(0, one.area.rows));
    const numbers = labelWidth(one.numbers.slice(0, one.area.rows));
    if (one.sign) x += 20;
    const space = Math.max(labels + across + numbers, captionWidth(one.grid, turned(one)));
    one.area.x = x + (space - labels - across - numbers) / 2 + labels;
    one.area.y = top;
    box.pictures.push({ ...one, middle: x + space / 2 });
    x += space;
    tallest = Math.max(tallest, down);
  }
  for (const { area } of box.pictures) area.y += (tallest - sizeOf(area)[1]) / 2;
  const inner = Math.max(x - PAD, titleWidth, equationWidth, 72);
  const shift = (inner - (x - PAD)) / 2;
  for (const one of box.pictures) {
    one.area.x += shift;
    one.middle += shift;
  }
  box.width = inner + 2 * PAD;
  box.height = top + tallest + (box.pictures.length ? 2 * (CAPTION + 2.5) + 8 : -8);
  return box;
}

const OPTIONS = {
  "elk.algorithm": "layered",
  "elk.direction": "DOWN",
  "elk.hierarchyHandling": "INCLUDE_CHILDREN",
  "elk.edgeRouting": "ORTHOGONAL",
  "elk.json.edgeCoords": "ROOT",
  "elk.json.shapeCoords": "ROOT",
  "elk.spacing.nodeNode": "26",
  "elk.spacing.edgeNode": "16",
  "elk.spacing.edgeEdge": "12",
  "elk.layered.spacing.nodeNodeBetweenLayers": "34",
  "elk.layered.spacing.edgeNodeBetweenLayers": "16",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
  "elk.layered.nodePlacement.strategy": "NETWORK_SIMPLEX",
  "elk.layered.mergeEdges": "true",
};

function padding(more: number): Record<string, string> {
  return { "elk.padding": `[top=52,left=${16 + more / 2},bottom=16,right=${16 + more / 2}]` };
}

function byId(root: ElkNode, result = new Map<string, ElkNode>()): Map<string, ElkNode> {
  result.set(root.id, root);
  for (const child of root.children ?? []) byId(child, result);
  return result;
}

/** Widen open boxes that are too narrow for their titles: ELK ignores minimum widths in nested layouts. */
function widen(graph: ElkNode, result: ElkNode, boxes: readonly Box[]): boolean {
  const [nodes, positions] = [byId(graph), byId(result)];
  const narrow = boxes.filter((box) => box.open && (positions.get(String(box.id))!.width ?? 0) < box.width);
  for (const box of narrow)
    nodes.get(String(box.id))!.layoutOptions = padding(box.width - positions.get(String(box.id))!.width!);
  return narrow.length > 0;
}

const EMPTY_BOX = { x: 0, y: 0, pictures: [], open: false, equation: "" };

/** The visible boxes and their graph for ELK. */
function graphOf(chart: Chart, seen: Seen, open: ReadonlySet<number>, language: Language, earlier: string) {
  const boxes: Box[] = [];
  const elkOf = (node: Node): ElkNode => {
    const box = boxOf(chart, node, node.kind === "group" && open.has(node.number), language);
    const id = String(node.number);
    boxes.push(box);
    if (!box.open) return { id, width: box.width, height: box.height };
    return { id, children: (seen.inside.get(node.number) ?? []).map(elkOf), layoutOptions: padding(0) };
  };
  const children = (seen.inside.get(null) ?? []).map(elkOf);
  if (seen.earlier) {
    const size = { width: width(earlier, SIZE.title) + 2 * PAD, height: 32 };
    boxes.push({ ...EMPTY_BOX, id: "earlier", node: null, title: earlier, ...size });
    children.unshift({ id: "earlier", ...size });
  }
  const edges = seen.edges.map(({ from, to }, index): ElkExtendedEdge => ({
    id: `e${index}`,
    sources: [String(from)],
    targets: [String(to)],
  }));
  const graph: ElkNode = { id: "root", layoutOptions: OPTIONS, children, edges };
  return { boxes, graph };
}

function wayOf({ sections = [] }: ElkExtendedEdge, { from, to, values }: Seen["edges"][number]): Way {
  const points = sections.flatMap(({ startPoint, bendPoints = [], endPoint }) => [startPoint, ...bendPoints, endPoint]);
  return { from, to, points, values };
}

/** Compute the positions of all visible boxes and edges. */
export async function layout(
  chart: Chart,
  seen: Seen,
  open: ReadonlySet<number>,
  language: Language,
  earlier: string,
): Promise<ChartLayout> {
  const { boxes, graph } = graphOf(chart, seen, open, language, earlier);
  const { default: ELK } = await import("elkjs/lib/elk.bundled.js"); // large, and only needed for charts
  let result = await new ELK().layout(structuredClone(graph));
  if (widen(graph, result, boxes)) result = await new ELK().layout(graph);
  const positions = byId(result);
  for (const box of boxes) {
    const at = positions.get(String(box.id))!;
    Object.assign(box, { x: at.x ?? 0, y: at.y ?? 0, width: at.width ?? box.width, height: at.height ?? box.height });
  }
  const ways = (result.edges ?? []).map((edge, index) => wayOf(edge, seen.edges[index]!));
  return { width: result.width ?? 0, height: result.height ?? 0, boxes, ways };
}
