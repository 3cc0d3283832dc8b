// The open groups. A group is identified by its path without the step, so it is open in all steps.

import type { Chart, Node } from "./chart_model.ts";

/** The paths of all nodes, by number. */
export function ways(chart: Chart): string[] {
  const paths: string[] = [];
  const seen = new Map<string, number>();
  for (const node of chart.nodes) {
    const above = node.parent === null ? "" : paths[node.parent]!;
    const plain = stepOf(node) ? "step" : node.name.en;
    const base = `${above}/${plain}`;
    const which = stepOf(node) ? 0 : (seen.get(`${base}@${node.parent}`) ?? 0);
    seen.set(`${base}@${node.parent}`, which + 1);
    paths.push(which ? `${base} ${which}` : base);
  }
  return paths;
}

function stepOf(node: Node): boolean {
  return node.parent === null && node.kind === "group" && node.time !== null;
}

/** The groups that are initially open. */
export function opened(chart: Chart): Set<string> {
  const all = ways(chart);
  return new Set(chart.nodes.filter((node) => node.kind === "group" && node.open).map((node) => all[node.number]!));
}

/** The numbers of the groups with these paths. */
export function numbers(chart: Chart, open: ReadonlySet<string>): Set<number> {
  const all = ways(chart);
  return new Set(
    chart.nodes.filter((node) => node.kind === "group" && open.has(all[node.number]!)).map((node) => node.number),
  );
}
