// The chart on the screen: boxes that are chosen, opened and pointed at.

import type { VNode } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import type { Theme } from "../shared/palette.ts";
import { drawing } from "./chart_drawing.ts";
import type { Box, Laid, Shown } from "./chart_layout.ts";
import { type Chart, gridOf, origin } from "./chart_model.ts";
import { type Shape, toVNode } from "./svg_shape.ts";
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
  const shape = useMemo(() => drawing(laid, theme, chart.title), [laid, theme, chart]);
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
      <svg {...shape.attributes} width={size(laid.width)} height={size(laid.height)}>
        <Parts chart={chart} laid={laid} shape={shape} chosen={chosen} lit={lit} pointed={pointed} />
      </svg>
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

type PartsProps = Pick<ChartStageProps, "chart" | "laid" | "chosen" | "lit" | "pointed"> & { shape: Shape };

/** The parts of the drawing. What is inside them is made once; only what surrounds it changes with the mouse. */
function Parts({ chart, laid, shape, chosen, lit, pointed }: PartsProps) {
  const inner = useMemo(
    () => shape.children.map((part) => (typeof part === "string" ? [part] : part.children.map(toVNode))),
    [shape],
  );
  const boxes = new Map(laid.boxes.map((box) => [String(box.id), box]));
  const parts = shape.children.map((part, index): VNode | string => {
    if (typeof part === "string") return part;
    if (part.attributes["class"] === "ways") return <Ways key="ways" ways={part} lit={lit} />;
    const id = part.attributes["data-box"];
    if (id === undefined) {
      const Tag = part.tag as "g";
      return (
        <Tag key={`part ${index}`} {...part.attributes}>
          {inner[index]}
        </Tag>
      );
    }
    const box = boxes.get(String(id))!;
    const kind = `${part.attributes["class"]}${String(chosen) === String(id) ? " chosen" : ""}`;
    return (
      <g key={`box ${id}`} {...part.attributes} {...accessible(chart, box)} class={kind}>
        {inner[index]}
        {pointed && String(pointed.box.id) === String(id) && <Marks chart={chart} pointed={pointed} />}
      </g>
    );
  });
  return <>{parts}</>;
}

function Ways({ ways, lit }: { ways: Shape; lit: string | null }) {
  return (
    <g class="ways">
      {ways.children.map((way, index) => {
        if (typeof way === "string") return way;
        const { "data-from": from, "data-to": to } = way.attributes;
        const marked = lit !== null && (String(from) === lit || String(to) === lit);
        return <path key={index} {...way.attributes} class={marked ? "way lit" : "way"} />;
      })}
    </g>
  );
}

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
