// Links of a span: its tokens on one side, the tokens they are linked with on the other, and a curve for each link.

import { figure } from "../shared/format.ts";
import { type Link, ends } from "./links.ts";
import { show } from "./token_spelling.ts";

const ROW = 24;
const LETTERS = 13;
const CURVE = { fill: "none", "stroke-linecap": "round" } as const;

interface LinkCurvesProps {
  links: readonly Link[];
  names: { from: readonly string[]; to: readonly string[] };
  label: string;
  choose?: (to: number) => void;
  colour?: (link: Link) => string;
}

export function LinkCurves({ links, names, label, choose, colour = () => "var(--accent)" }: LinkCurvesProps) {
  const [from, to] = [[...new Set(links.map((link) => link.from))].sort((a, b) => a - b), ends(links)];
  const height = Math.max(from.length, to.length) * ROW + 8;
  const y = (list: readonly number[], index: number): number => (height - list.length * ROW) / 2 + (index + 0.5) * ROW;
  const strongest = Math.max(...links.map((link) => link.weight), 1e-12);
  const name = (side: "from" | "to", token: number): string => show(names[side][token] ?? String(token));
  const nameOf = ({ head, from, to, weight }: Link): string =>
    `${head === undefined ? "" : `${head}: `}${name("from", from)} → ${name("to", to)}: ${figure(weight)}`;
  const drawn = links.filter((link) => to.includes(link.to)).sort((a, b) => a.weight - b.weight);
  return (
    <svg class="links" viewBox={`0 0 360 ${height}`} role="img" aria-label={label}>
      {drawn.map((link) => {
        const [start, end] = [y(from, from.indexOf(link.from)), y(to, to.indexOf(link.to)) + beside(link, links)];
        const share = link.weight / strongest;
        return (
          <path
            key={`${link.from} ${link.to} ${link.head}`}
            d={`M128 ${start} C 178 ${start}, 178 ${end}, 228 ${end}`}
            {...CURVE}
            stroke={colour(link)}
            stroke-width={0.75 + 5 * share}
            stroke-opacity={0.15 + 0.75 * share}>
            <title>{nameOf(link)}</title>
          </path>
        );
      })}
      {from.map((token, index) => (
        <text key={`from ${token}`} x={122} y={y(from, index)} text-anchor="end" class="chosen">
          {clip(name("from", token))}
        </text>
      ))}
      {to.map((token, index) => (
        <text key={`to ${token}`} x={234} y={y(to, index)} class={choose && "end"} onClick={() => choose?.(token)}>
          {clip(name("to", token))}
          <tspan class="place" dx={8} children={token} />
        </text>
      ))}
    </svg>
  );
}

/** The distance of a link from the middle of its row: links of several heads to one token lie beside each other. */
function beside({ head }: Link, links: readonly Link[]): number {
  if (head === undefined) return 0;
  const heads = Math.max(...links.map((link) => (link.head ?? 0) + 1));
  return (head - (heads - 1) / 2) * Math.min(3, 14 / heads);
}

function clip(text: string): string {
  const letters = Array.from(text);
  return letters.length <= LETTERS ? text : `${letters.slice(0, LETTERS - 1).join("")}…`;
}
