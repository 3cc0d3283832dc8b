// Which groups are open. A group is known by its way from the top, not by its step: what is open at one is at the next.

import type { Chart, Node } from "./chart_model.ts";

/** The ways of all nodes, by number. */
export function ways(chart: Chart): string[] {
  const found: string[] = [];
  const seen = new Map<string, number>();
  for (const node of chart.nodes) {
    const above = node.parent === null ? "" : found[node.parent]!;
    const plain = stepOf(node) ? "step" : node.name.en;
    const base = `${above}/${plain}`;
    const which = stepOf(node) ? 0 : (seen.get(`${base}@${node.parent}`) ?? 0);
    seen.set(`${base}@${node.parent}`, which + 1);
    found.push(which ? `${base} ${which}` : base);
  }
  return found;
}

function stepOf(node: Node): boolean {
  return node.parent === null && node.kind === "group" && node.time !== null;
}

/** The groups that the chart wants open. */
export function opened(chart: Chart): Set<string> {
  const all = ways(chart);
  return new Set(chart.nodes.filter((node) => node.kind === "group" && node.open).map((node) => all[node.number]!));
}

/** The numbers of the groups with these ways. */
export function numbers(chart: Chart, open: ReadonlySet<string>): Set<number> {
  const all = ways(chart);
  return new Set(
    chart.nodes.filter((node) => node.kind === "group" && open.has(all[node.number]!)).map((node) => node.number),
  );
}
