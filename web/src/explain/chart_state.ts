// The state of a chart: open groups, selected box, step and zoom.

import { type Chart, type Node } from "./chart_model.ts";
import { numbers, opened, ways } from "./open_groups.ts";

export interface ChartState {
  chart: Chart;
  /** The open groups, by path. */
  open: ReadonlySet<string>;
  step: number;
  chosen: number | null;
  /** 0 until the chart is fitted to the screen. */
  zoom: number;
}

export function initial(chart: Chart, step: number): ChartState {
  const first = Math.min(Math.max(1, chart.step ?? step), Math.max(1, chart.steps));
  return { chart, open: opened(chart), step: first, chosen: null, zoom: 0 };
}

export function zoomed(state: ChartState, by: number): ChartState {
  return { ...state, zoom: Math.min(3, Math.max(0.2, state.zoom * by)) };
}

/** Open or close a group. */
export function toggled(state: ChartState, node: Node): ChartState {
  const way = ways(state.chart)[node.number]!;
  const open = new Set(state.open);
  if (!open.delete(way)) open.add(way);
  return { ...state, open };
}

export function isOpen({ chart, open }: ChartState, node: Node): boolean {
  return numbers(chart, open).has(node.number);
}

/** Open all groups, or close all except the steps, which would show nothing as single boxes. */
export function openedAll(state: ChartState, all: boolean): ChartState {
  const every = ways(state.chart);
  const groups = state.chart.nodes.filter((node) => node.kind === "group");
  const open = groups.filter((node) => all || (node.time !== null && node.parent === null));
  return { ...state, open: new Set(open.map((node) => every[node.number]!)) };
}

/** Go to another step. The selected box stays selected in the new step. */
export function stepped(state: ChartState, step: number): ChartState {
  const { chart, chosen } = state;
  const next = { ...state, step: Math.min(Math.max(1, step), chart.steps) };
  if (chosen === null || chart.nodes[chosen]!.time === null) return next;
  const all = ways(chart);
  const same = chart.nodes.find((node) => node.time === next.step && all[node.number] === all[chosen]);
  return { ...next, chosen: same?.number ?? null };
}
