// The interactive chart: boxes can be selected, opened and hovered.

import { type ComponentChildren, type VNode, cloneElement, toChildArray } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import type { Theme } from "../shared/palette.ts";
import { drawing, textsOf } from "./chart_drawing.tsx";
import type { Box, ChartLayout, Shown } from "./chart_layout.ts";
import { type Chart, gridOf, origin } from "./chart_model.ts";
import { cellAt, leftOf, sizeOf } from "./value_picture.ts";
import type { Cell } from "./value_text.ts";

/** A hovered cell of a box. `shown` is the picture under the mouse, at the screen position `x`, `y`; null for the panel. */
export type Pointed = { box: Box; cell: Cell; shown: Shown | null; x: number; y: number };

interface ChartCanvasProps {
  chart: Chart;
  layout: ChartLayout;
  theme: Theme;
  zoom: number;
  chosen: number | null;
  /** The box whose edges are highlighted. */
  lit: string | null;
  pointed: Pointed | null;
  setLit: (lit: string | null) => void;
  point: (pointed: Pointed | null) => void;
  select: (box: Box, target: Element) => void;
  setZoom: (zoom: number) => void;
}

export function ChartCanvas(props: ChartCanvasProps) {
  const { chart, layout, theme, zoom, chosen, lit, pointed } = props;
  const container = useRef<HTMLDivElement>(null);
  const draw = () => drawing(layout, theme, chart.title, (box) => accessible(chart, box));
  const drawn = useMemo(draw, [layout, theme, chart]);
  const boxOf = (part: Element): Box | null => layout.boxes.find((box) => String(box.id) === idOf(part)) ?? null;
  useFocusedBox(container, layout);
  useLayoutEffect(() => {
    if (!zoom) props.setZoom(fit(container.current!, layout));
  }, [layout, zoom]);
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
      ref={container}
      data-boxes={layout.boxes.length}
      onPointerMove={moved}
      onPointerLeave={() => props.point(null)}
      onClick={clicked}
      onFocusIn={focused}>
      {cloneElement(
        drawn,
        { width: size(layout.width), height: size(layout.height) },
        <Parts chart={chart} parts={drawn.props.children} chosen={chosen} lit={lit} pointed={pointed} />,
      )}
    </div>
  );
}

/** The id of the box that an element belongs to. */
function idOf(element: Element): string | null {
  return element.closest("[data-box]")?.getAttribute("data-box") ?? null;
}

/** Keep the focus on a box that moved because it was opened or closed. */
function useFocusedBox(container: { current: HTMLElement | null }, layout: ChartLayout): void {
  const active = container.current?.contains(document.activeElement)
    ? document.activeElement?.getAttribute("data-box")
    : null;
  useLayoutEffect(() => {
    if (!active || container.current!.contains(document.activeElement)) return;
    container.current!.querySelector<SVGGElement>(`[data-box="${active}"]`)?.focus();
  }, [layout]);
}

/** Fit the chart to the width, if it stays readable, and scroll to the first box. */
function fit(container: HTMLElement, layout: ChartLayout): number {
  const room = container.clientWidth - 4;
  const zoom = Math.min(1.1, Math.max(room < 600 ? 0.8 : 0.6, room / layout.width));
  const first = layout.boxes.reduce((best, box) => (box.y < best.y ? box : best));
  requestAnimationFrame(() => (container.scrollLeft = (first.x + first.width / 2) * zoom - room / 2));
  return zoom;
}

function pointedAt(event: PointerEvent, target: Element, box: Box): Pointed | null {
  const cover = target.closest<SVGRectElement>(".cover");
  const matrix = target.closest<SVGGElement>("[data-box]")?.getScreenCTM()?.inverse();
  if (!box.node || !cover || !matrix) return null;
  const shown = box.pictures[Number(cover.dataset["shown"])]!;
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
  const cell = cellAt(shown.area, at.x, at.y);
  return cell && { box, cell, shown, x: event.clientX, y: event.clientY };
}

type PartsProps = Pick<ChartCanvasProps, "chart" | "chosen" | "lit" | "pointed"> & { parts: ComponentChildren };

/** The parts of the drawing. They are created once; only those that change with the mouse are updated. */
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

/** Names and roles for the keyboard and for screen readers. The name of a closed box has all its texts, so that a box can
 * also be chosen by voice. */
function accessible(chart: Chart, box: Box) {
  if (!box.node) return {};
  const value = box.node.value === null ? null : gridOf(chart, box.node.value).value;
  const size = value ? `${value.letters.join(" ")} ${value.shape.join("×")}` : "";
  return {
    tabindex: 0, // in lower case: attributes of SVG elements are case-sensitive
    role: "button" as const,
    "aria-label": (box.open ? [box.title, box.equation, size] : textsOf(box)).filter(Boolean).join(", "),
    "aria-expanded": box.node.kind === "group" ? box.open : undefined,
  };
}

/** Frames around the hovered cell and the operand cells from which it was computed. */
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

function Frame({ picture: { area }, matrix, row, column }: FrameProps) {
  const [down, across] = area.turned ? [column, row] : [row, column];
  if ((down ?? 0) >= area.rows || (across ?? 0) >= area.columns) return null;
  const x = leftOf(area, Math.min(matrix, area.matrices - 1)) + (across ?? 0) * area.cell;
  const y = area.y + (down ?? 0) * area.cell;
  const width = across === null ? area.columns * area.cell : area.cell;
  const height = down === null ? sizeOf(area)[1] : area.cell;
  return <rect class="mark" x={x - 1} y={y - 1} width={width + 1} height={height + 1} rx={1.5} fill="none" />;
}
