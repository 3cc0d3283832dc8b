// The chart on the screen: boxes that are chosen, opened and pointed at.

import { type ComponentChildren, type VNode, cloneElement, toChildArray } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import type { Theme } from "../shared/palette.ts";
import { drawing } from "./chart_drawing.tsx";
import type { Box, Laid, Shown } from "./chart_layout.ts";
import { type Chart, gridOf, origin } from "./chart_model.ts";
import { cellAt, leftOf, sizeOf } from "./value_picture.ts";
import type { Cell } from "./value_text.ts";

/** A cell of a box. `shown` is the picture that the mouse points at, at `x` and `y` of the screen; null for the panel. */
export type Pointed = { box: Box; cell: Cell; shown: Shown | null; x: number; y: number };

interface ChartStageProps {
  chart: Chart;
  laid: Laid;
  theme: Theme;
  zoom: number;
  chosen: number | null;
  /** The box whose ways are highlighted. */
  lit: string | null;
  pointed: Pointed | null;
  setLit: (lit: string | null) => void;
  point: (pointed: Pointed | null) => void;
  select: (box: Box, target: Element) => void;
  setZoom: (zoom: number) => void;
}

export function ChartStage(props: ChartStageProps) {
  const { chart, laid, theme, zoom, chosen, lit, pointed } = props;
  const stage = useRef<HTMLDivElement>(null);
  const drawn = useMemo(() => drawing(laid, theme, chart.title, (box) => accessible(chart, box)), [laid, theme, chart]);
  const boxOf = (element: Element): Box | null => laid.boxes.find((box) => String(box.id) === idOf(element)) ?? null;
  useFocusedBox(stage, laid);
  useLayoutEffect(() => {
    if (!zoom) props.setZoom(fit(stage.current!, laid));
  }, [laid, zoom]);
  const size = (length: number): number => Math.ceil(length * (zoom || 1));
  const moved = (event: PointerEvent): void => {
    const target = event.target as Element;
    const box = boxOf(target);
    props.setLit(box ? String(box.id) : chosen === null ? null : String(chosen));
    props.point(box && pointedAt(event, target, box));
  };
  const clicked = ({ target }: Event): void => {
    const box = boxOf(target as Element);
    if (box?.node) props.select(box, target as Element);
  };
  const focused = ({ target }: Event): void => props.setLit(idOf(target as Element));
  return (
    <div
      class="stage"
      ref={stage}
      data-boxes={laid.boxes.length}
      onPointerMove={moved}
      onPointerLeave={() => props.point(null)}
      onClick={clicked}
      onFocusIn={focused}>
      {cloneElement(
        drawn,
        { width: size(laid.width), height: size(laid.height) },
        <Parts chart={chart} parts={drawn.props.children} chosen={chosen} lit={lit} pointed={pointed} />,
      )}
    </div>
  );
}

/** The id of the box that an element belongs to. */
function idOf(element: Element): string | null {
  return element.closest("[data-box]")?.getAttribute("data-box") ?? null;
}

/** Keep the focus on a box that is drawn elsewhere after it was opened or closed. */
function useFocusedBox(stage: { current: HTMLElement | null }, laid: Laid): void {
  const active = stage.current?.contains(document.activeElement)
    ? document.activeElement?.getAttribute("data-box")
    : null;
  useLayoutEffect(() => {
    if (!active || stage.current!.contains(document.activeElement)) return;
    stage.current!.querySelector<SVGGElement>(`[data-box="${active}"]`)?.focus();
  }, [laid]);
}

/** As wide as there is room, but large enough to be read; scrolled to what comes first. */
function fit(stage: HTMLElement, laid: Laid): number {
  const room = stage.clientWidth - 4;
  const zoom = Math.min(1.1, Math.max(room < 600 ? 0.8 : 0.6, room / laid.width));
  const first = laid.boxes.reduce((best, box) => (box.y < best.y ? box : best));
  requestAnimationFrame(() => (stage.scrollLeft = (first.x + first.width / 2) * zoom - room / 2));
  return zoom;
}

function pointedAt(event: PointerEvent, target: Element, box: Box): Pointed | null {
  const cover = target.closest<SVGRectElement>(".cover");
  const matrix = target.closest<SVGGElement>("[data-box]")?.getScreenCTM()?.inverse();
  if (!box.node || !cover || !matrix) return null;
  const shown = box.pictures[Number(cover.dataset["shown"])]!;
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
  const cell = cellAt(shown.place, at.x, at.y);
  return cell && { box, cell, shown, x: event.clientX, y: event.clientY };
}

type PartsProps = Pick<ChartStageProps, "chart" | "chosen" | "lit" | "pointed"> & { parts: ComponentChildren };

/** The parts of the drawing, which are made once; only what changes with the mouse is made again. */
function Parts({ chart, parts, chosen, lit, pointed }: PartsProps) {
  const way = (one: Part): Part => {
    const marked = lit !== null && (String(one.props["data-from"]) === lit || String(one.props["data-to"]) === lit);
    return marked ? cloneElement(one, { class: "way lit" }) : one;
  };
  const decorated = (part: Part): Part => {
    const { "data-box": id, class: kind, children } = part.props;
    if (kind === "ways") return cloneElement(part, {}, (toChildArray(children) as Part[]).map(way));
    const points = pointed !== null && pointed.box.id === id;
    if (id === undefined || !(points || id === chosen)) return part;
    const names = id === chosen ? `${kind} chosen` : kind;
    return cloneElement(part, { class: names }, ...children, points && <Marks chart={chart} pointed={pointed} />);
  };
  return <>{(toChildArray(parts) as Part[]).map(decorated)}</>;
}

type Part = VNode<{ class?: string; children: ComponentChildren[]; [data: `data-${string}`]: string | number }>;

/** Names and roles for the keyboard and for screen readers. */
function accessible(chart: Chart, box: Box) {
  if (!box.node) return {};
  const value = box.node.value === null ? null : gridOf(chart, box.node.value).value;
  const size = value ? `${value.letters.join(" ")} ${value.shape.join("×")}` : "";
  return {
    tabindex: 0, // in lower case: attributes of SVG elements are case-sensitive
    role: "button" as const,
    "aria-label": [box.title, box.equation, size].filter(Boolean).join(", "),
    "aria-expanded": box.node.kind === "group" ? box.open : undefined,
  };
}

/** Frames around the cell pointed at, and the rows and columns that it came from. */
function Marks({ chart, pointed: { box, cell, shown } }: { chart: Chart; pointed: Pointed }) {
  const node = box.node!;
  const result = box.pictures.find((one) => one.operand === null);
  const frames: [Shown, number | null, number | null][] = [];
  if (shown && shown.operand !== null) frames.push([shown, cell.row, cell.column]);
  else if (result) {
    frames.push([result, cell.row, cell.column]);
    const operands = node.operands.map((operand) => gridOf(chart, operand.value));
    for (const part of origin(node.rule, operands, result.grid, cell.row, cell.column)) {
      const picture = box.pictures.find((one) => one.operand === part.operand);
      if (picture) frames.push([picture, part.row, part.column]);
    }
  }
  return (
    <>
      {frames.map(([picture, row, column], index) => (
        <Frame key={index} picture={picture} matrix={cell.matrix} row={row} column={column} />
      ))}
    </>
  );
}

interface FrameProps {
  picture: Shown;
  matrix: number;
  /** null for a whole column */
  row: number | null;
  /** null for a whole row */
  column: number | null;
}

function Frame({ picture: { place }, matrix, row, column }: FrameProps) {
  const [down, across] = place.turned ? [column, row] : [row, column];
  if ((down ?? 0) >= place.rows || (across ?? 0) >= place.columns) return null;
  const x = leftOf(place, Math.min(matrix, place.matrices - 1)) + (across ?? 0) * place.cell;
  const y = place.y + (down ?? 0) * place.cell;
  const width = across === null ? place.columns * place.cell : place.cell;
  const height = down === null ? sizeOf(place)[1] : place.cell;
  return <rect class="mark" x={x - 1} y={y - 1} width={width + 1} height={height + 1} rx={1.5} fill="none" />;
}
