// Convert the elements of a drawing to SVG text.

import { type ComponentChild, type VNode, toChildArray } from "preact";

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string): string => text.replace(/[&<>"]/g, (letter) => ENTITIES[letter]!);

export function toText(node: ComponentChild): string {
  if (!node || typeof node !== "object") return escaped(String(node));
  const { type, props } = node as VNode<Record<string, unknown>>;
  const { children, ...named } = props;
  const attributes = Object.entries(named).map(([name, value]) => ` ${name}="${escaped(String(value))}"`);
  const inside = toChildArray(children).map(toText).join("");
  const start = `<${String(type)}${attributes.join("")}`;
  return inside ? `${start}>${inside}</${String(type)}>` : `${start}/>`;
}

/** Approximate width of a text. It does not depend on a browser, so that files have the same layout. */
export function width(text: string, size: number, mono = false): number {
  let total = 0;
  for (const letter of text) {
    const wide = (letter.codePointAt(0) ?? 0) > 0x2e7f;
    const narrow = !mono && "iljtfr.,:;|'I ()-".includes(letter);
    total += wide ? 1 : mono ? 0.61 : narrow ? 0.43 : /[A-Zmw]/.test(letter) ? 0.86 : 0.69;
  }
  return Math.ceil(total * size);
}
