// A drawing before it is drawn: on the screen it becomes elements, in a file text. Both are the same drawing.

export interface Shape {
  tag: string;
  attributes: Record<string, string | number>;
  children: (Shape | string)[];
}

export function shape(tag: string, attributes: Record<string, string | number> = {}, ...children: (Shape | string)[]): Shape {
  return { tag, attributes, children };
}

export function toElement(drawing: Shape): SVGElement {
  const node = document.createElementNS("http://www.w3.org/2000/svg", drawing.tag);
  for (const [name, value] of Object.entries(drawing.attributes)) node.setAttribute(name, String(value));
  node.append(...drawing.children.map((child) => (typeof child === "string" ? child : toElement(child))));
  return node;
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string): string => text.replace(/[&<>"]/g, (letter) => ENTITIES[letter]!);

export function toText(drawing: Shape): string {
  const attributes = Object.entries(drawing.attributes).map(([name, value]) => ` ${name}="${escaped(String(value))}"`).join("");
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
