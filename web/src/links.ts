// Links of a span: its tokens on one side, what they are most strongly linked with on the other, a curve for each link.

import { draw, figure } from "./dom.ts";
import { show } from "./tokens.ts";

export interface Link {
  from: number;
  to: number;
  weight: number;
}

export const MOST_FROM = 16;
const MOST_TO = 28;
const ROW = 24;

/** The ends to show: those with the greatest sums of weights, in the order of the text. */
export function ends(links: readonly Link[], most = MOST_TO): number[] {
  const sums = new Map<number, number>();
  for (const { to, weight } of links) sums.set(to, (sums.get(to) ?? 0) + weight);
  const best = [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, most);
  return best.map(([to]) => to).sort((a, b) => a - b);
}

export function drawLinks(
  links: readonly Link[],
  names: { from: readonly string[]; to: readonly string[] },
  label: string,
  choose: (to: number) => void,
): SVGSVGElement {
  const from = [...new Set(links.map((link) => link.from))].sort((a, b) => a - b);
  const to = ends(links);
  const height = Math.max(from.length, to.length) * ROW + 8;
  const y = (list: readonly number[], place: number): number => (height - list.length * ROW) / 2 + (place + 0.5) * ROW;
  const strongest = Math.max(...links.map((link) => link.weight), 1e-12);
  const name = {
    from: (token: number) => show(names.from[token] ?? String(token)),
    to: (token: number) => show(names.to[token] ?? String(token)),
  };
  const svg = draw("svg", { viewBox: `0 0 360 ${height}`, class: "links", role: "img", "aria-label": label });
  const curves = links.filter((link) => to.includes(link.to)).sort((a, b) => a.weight - b.weight).map((link) => {
    const [start, end] = [y(from, from.indexOf(link.from)), y(to, to.indexOf(link.to))];
    const share = link.weight / strongest;
    return draw("path", {
      d: `M128 ${start} C 178 ${start}, 178 ${end}, 228 ${end}`, fill: "none", stroke: "var(--accent)",
      "stroke-width": 0.75 + 5 * share, "stroke-opacity": 0.15 + 0.75 * share, "stroke-linecap": "round",
    }, draw("title", {}, `${name.from(link.from)} → ${name.to(link.to)}: ${figure(link.weight)}`));
  });
  svg.append(...curves);
  for (const [place, token] of from.entries()) {
    const where = { x: 122, y: y(from, place), "text-anchor": "end", class: "chosen" };
    svg.append(draw("text", where, clip(name.from(token))));
  }
  for (const [place, token] of to.entries()) {
    const number = draw("tspan", { class: "place", dx: 8 }, String(token));
    const text = draw("text", { x: 234, y: y(to, place), class: "end" }, clip(name.to(token)), number);
    text.addEventListener("click", () => choose(token));
    svg.append(text);
  }
  return svg;
}

function clip(text: string): string {
  const letters = Array.from(text);
  return letters.length <= 13 ? text : `${letters.slice(0, 12).join("")}…`;
}
