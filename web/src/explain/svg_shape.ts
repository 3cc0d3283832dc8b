// A drawing as plain data. On the screen it becomes elements, in a file text.

import { type VNode, h } from "preact";

export type Shape = { tag: string; attributes: Record<string, string | number>; children: (Shape | string)[] };

export function shape(
  tag: string,
  attributes: Record<string, string | number> = {},
  ...children: (Shape | string)[]
): Shape {
  return { tag, attributes, children };
}

/** For the screen. */
export function toVNode(drawing: Shape | string): VNode | string {
  if (typeof drawing === "string") return drawing;
  return h(drawing.tag, drawing.attributes, ...drawing.children.map(toVNode));
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string): string => text.replace(/[&<>"]/g, (letter) => ENTITIES[letter]!);

/** For a file. */
export function toText(drawing: Shape): string {
  const attributes = Object.entries(drawing.attributes)
    .map(([name, value]) => ` ${name}="${escaped(String(value))}"`)
    .join("");
  const inside = drawing.children.map((child) => (typeof child === "string" ? escaped(child) : toText(child))).join("");
  return inside ? `<${drawing.tag}${attributes}>${inside}</${drawing.tag}>` : `<${drawing.tag}${attributes}/>`;
}

/** How wide a text is, near enough for a box to hold it: no browser is asked, so that a file has the same boxes. */
export function width(text: string, size: number, mono = false): number {
  let total = 0;
  for (const letter of text) {
    const wide = (letter.codePointAt(0) ?? 0) > 0x2e7f;
    const narrow = !mono && "iljtfr.,:;|'I ()-".includes(letter);
    total += wide ? 1 : mono ? 0.61 : narrow ? 0.43 : /[A-Zmw]/.test(letter) ? 0.86 : 0.69;
  }
  return Math.ceil(total * size);
}
