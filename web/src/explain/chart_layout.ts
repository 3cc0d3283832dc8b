// From what is seen to where it lies: what each box holds and how large it is, then ELK for places and ways.

import type { ElkExtendedEdge, ElkNode, ElkPoint } from "elkjs/lib/elk.bundled.js";

import type { Language } from "../shared/translations.ts";
import { type Chart, type Grid, type Id, type Node, type Seen, gridOf } from "./chart_model.ts";
import { CAPTION, type Frame, captionWidth, frame, sizeOf } from "./value_picture.ts";
import { width } from "./svg_text.ts";

export const SIZE = { title: 13, equation: 10.5, token: 9.5 };
const PAD = 12;
const CELL = 7;
const TOKENS = 24;

/** One picture in a box: a tensor that it was given, or what it made of them. */
export interface Shown {
  grid: Grid;
  place: Frame;
  /** Which operand; null for the result. */
  operand: number | null;
  /** What stands before it: · + = → */
  sign: string;
  tokens: string[];
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

export type Laid = { width: number; height: number; boxes: Box[]; ways: Way[] };

/** Whether the letters of a picture are exchanged with its rows and columns: those of ids beside their tokens are not. */
export function turned(one: Pick<Shown, "place" | "tokens">): boolean {
  return one.place.turned && !one.tokens.length;
}

/** The pictures of a box: those it was given where a cell can be followed to them, and what it made. */
function pictured(chart: Chart, node: Node): Omit<Shown, "middle">[] {
  if (node.value === null) return [];
  const result = gridOf(chart, node.value);
  const grids = node.operands.map((operand) => gridOf(chart, operand.value));
  const { letters } = result.value;
  const turned = node.kind === "input" && result.rows === 1 && (letters.at(-1) ?? "") in chart.tokens; // ids stand below each other, beside their tokens
  const tokens = node.kind === "input" ? (chart.tokens[letters.at(turned ? -1 : -2) ?? ""] ?? []) : [];
  const image = node.kind === "input" && result.value.shape.length === 4;
  const cell = tokens.length ? 11 : image && result.columns > 12 ? 4 : CELL;
  const most = tokens.length ? { rows: TOKENS, columns: 12 } : image ? { rows: 32, columns: 32 } : undefined;
  const made = (sign: string): Omit<Shown, "middle"> => ({
    grid: result,
    place: frame(result, cell, turned, most),
    operand: null,
    sign,
    tokens,
  });
  const given = (operand: number, sign = "", turned = false): Omit<Shown, "middle"> => ({
    grid: grids[operand]!,
    place: frame(grids[operand]!, CELL, turned),
    operand,
    sign,
    tokens: [],
  });
  const alike = (grid: Grid | undefined): boolean =>
    grid !== undefined && grid.rows === result.rows && grid.columns === result.columns;
  if (node.rule === "product" && grids[1]) return [given(0), given(1, "·"), made("=")];
  if (node.rule === "linear" && grids[1]) return [given(0), given(1, "·", true), made("=")];
  if (node.rule === "row" && alike(grids[0])) return [given(0), made("→")];
  const sign = /[+−⊙]/.exec(node.equation)?.[0];
  if (node.kind === "box" && node.rule === "same" && sign && grids.length === 2 && alike(grids[0]) && alike(grids[1]))
    return [given(0), given(1, sign), made("=")];
  return [made("")];
}

function boxOf(chart: Chart, node: Node, open: boolean, language: Language): Box {
  const [title, equation] = [node.name[language], node.equation];
  const box: Box = { id: node.number, node, title, equation, open, x: 0, y: 0, width: 0, height: 0, pictures: [] };
  const words = width(title, SIZE.title) + (node.kind === "group" ? 22 : 0);
  const told = equation ? width(equation, SIZE.equation, true) : 0;
  if (open) {
    box.width = Math.max(words, told) + 40;
    return box;
  }
  let [x, tallest] = [PAD, 0];
  const top = equation ? 46 : 28;
  for (const one of pictured(chart, node)) {
    const [across, down] = sizeOf(one.place);
    const labels = one.tokens.length
      ? Math.max(...one.tokens.slice(0, one.place.rows).map((token) => width(token, SIZE.token, true))) + 6
      : 0;
    if (one.sign) x += 20;
    const room = Math.max(across + labels, captionWidth(one.grid, turned(one)));
    one.place.x = x + (room - across - labels) / 2 + labels;
    one.place.y = top;
    box.pictures.push({ ...one, middle: x + room / 2 });
    x += room;
    tallest = Math.max(tallest, down);
  }
  for (const { place } of box.pictures) place.y += (tallest - sizeOf(place)[1]) / 2;
  const inner = Math.max(x - PAD, words, told, 72);
  const shift = (inner - (x - PAD)) / 2;
  for (const one of box.pictures) {
    one.place.x += shift;
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

function byId(root: ElkNode, found = new Map<string, ElkNode>()): Map<string, ElkNode> {
  found.set(root.id, root);
  for (const child of root.children ?? []) byId(child, found);
  return found;
}

/** Room for the words of open boxes that what they hold leaves none for: ELK heeds no least width where it lays out boxes in boxes. */
function widen(graph: ElkNode, found: ElkNode, boxes: readonly Box[]): boolean {
  const [nodes, places] = [byId(graph), byId(found)];
  const narrow = boxes.filter((box) => box.open && (places.get(String(box.id))!.width ?? 0) < box.width);
  for (const box of narrow)
    nodes.get(String(box.id))!.layoutOptions = padding(box.width - places.get(String(box.id))!.width!);
  return narrow.length > 0;
}

const NOWHERE = { x: 0, y: 0, pictures: [], open: false, equation: "" };

/** The boxes of what is seen, and their graph for ELK. */
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
    boxes.push({ ...NOWHERE, id: "earlier", node: null, title: earlier, ...size });
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

/** Places for all that is seen. */
export async function layout(
  chart: Chart,
  seen: Seen,
  open: ReadonlySet<number>,
  language: Language,
  earlier: string,
): Promise<Laid> {
  const { boxes, graph } = graphOf(chart, seen, open, language, earlier);
  const { default: ELK } = await import("elkjs/lib/elk.bundled.js"); // large, and needed for charts only
  let found = await new ELK().layout(structuredClone(graph));
  if (widen(graph, found, boxes)) found = await new ELK().layout(graph);
  const places = byId(found);
  for (const box of boxes) {
    const at = places.get(String(box.id))!;
    Object.assign(box, { x: at.x ?? 0, y: at.y ?? 0, width: at.width ?? box.width, height: at.height ?? box.height });
  }
  const ways = (found.edges ?? []).map((edge, index) => wayOf(edge, seen.edges[index]!));
  return { width: found.width ?? 0, height: found.height ?? 0, boxes, ways };
}
