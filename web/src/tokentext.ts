// A text of tokens that can be coloured, marked and walked through. Long ones are drawn part by part as they come into
// sight, so that a hundred thousand tokens cost no more than a screenful.

import { begin, end } from "./ahead.ts";
import { make } from "./dom.ts";
import { clamp } from "./levels.ts";
import { type Spelled, parts, spell } from "./tokens.ts";

export interface TextEvents {
  choose(token: number, lengthen: boolean): void;
  clear(): void;
}

let count = 0;

export class TokenText {
  readonly element: HTMLElement;
  private readonly spelled: Spelled[];
  private readonly cuts: [number, number][];
  private readonly blocks: HTMLElement[];
  private readonly nodes: (HTMLElement | undefined)[];
  private readonly events: TextEvents;
  private readonly id = `text${(count += 1)}`;
  private readonly watch: IntersectionObserver;
  private shades: ArrayLike<number> | null = null;
  private marks = new Set<number>();
  private span: [number, number] | null = null;
  private at: number | null = null;

  constructor(tokens: readonly string[], label: string, events: TextEvents) {
    this.events = events;
    this.spelled = spell(tokens);
    this.cuts = parts(this.spelled);
    this.nodes = new Array<HTMLElement | undefined>(tokens.length);
    this.blocks = this.cuts.map(([start, end], place) => {
      const block = make("div", { className: "part", attributes: { "data-part": place, role: "presentation" } });
      const letters = this.spelled.slice(start, end).reduce((sum, token) => sum + token.text.length + 1, 0);
      block.style.minHeight = `${Math.ceil(letters / 80) * 1.9}em`; // a guess until it is drawn
      return block;
    });
    this.element = make("div", {
      className: "tokens", tabIndex: 0,
      attributes: { role: "listbox", "aria-label": label, "data-keep": `tokens ${label}` },
      onkeydown: (event) => { if (this.pressed(event)) event.preventDefault(); },
      onclick: (event) => {
        const node = (event.target as HTMLElement).closest<HTMLElement>("[data-token]");
        if (node) events.choose(Number(node.dataset["token"]), event.shiftKey);
      },
    }, ...this.blocks);
    begin(this, "text"); // the first part of it is drawn once it has a place
    this.watch = new IntersectionObserver((entries) => {
      end(this);
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) this.fill(Number((target as HTMLElement).dataset["part"]));
      }
    }, { rootMargin: "600px" });
    for (const block of this.blocks) this.watch.observe(block);
  }

  private fill(part: number): void {
    const block = this.blocks[part]!;
    if (block.firstChild) return;
    const [start, end] = this.cuts[part]!;
    const children: (Node | string)[] = [];
    for (let place = start; place < end; place += 1) {
      const { text, space, breaks } = this.spelled[place]!;
      const node = make("span", {
        id: `${this.id}-${place}`, attributes: { role: "option", "data-token": place },
      }, breaks ? "⏎" : text || "∅");
      if (breaks) node.classList.add("newline");
      this.nodes[place] = node;
      this.paint(place);
      if (space && place > start) children.push(" ");
      children.push(node);
      if (breaks) children.push(make("br"));
    }
    block.append(...children);
    block.style.minHeight = "";
    this.watch.unobserve(block);
  }

  private paint(place: number): void {
    const node = this.nodes[place];
    if (!node) return;
    const shade = this.shades?.[place] ?? 0;
    node.style.setProperty("--w", shade.toFixed(3));
    node.classList.toggle("deep", shade > 0.85);
    node.classList.toggle("marked", this.marks.has(place));
    const within = this.span !== null && place >= this.span[0] && place <= this.span[1];
    node.classList.toggle("chosen", within);
    if (within) node.setAttribute("aria-selected", "true");
    else node.removeAttribute("aria-selected");
  }

  private repaint(): void {
    this.nodes.forEach((_, place) => this.paint(place));
  }

  /** Colour each token by a number in [0, 1]. */
  colour(shades: ArrayLike<number> | null): void {
    this.shades = shades;
    this.repaint();
  }

  mark(places: Iterable<number>): void {
    this.marks = new Set(places);
    this.repaint();
  }

  choose(token: number | null, end: number | null = null): void {
    this.span = token === null ? null : [Math.min(token, end ?? token), Math.max(token, end ?? token)];
    this.at = token === null ? null : (end ?? token);
    this.repaint();
    if (this.at !== null) {
      this.node(this.at);
      this.element.setAttribute("aria-activedescendant", `${this.id}-${this.at}`);
    } else this.element.removeAttribute("aria-activedescendant");
  }

  /** Bring a token into sight within the text, without moving the page more than needed. */
  reveal(token: number): void {
    const node = this.node(token);
    const [box, frame] = [node.getBoundingClientRect(), this.element.getBoundingClientRect()];
    if (this.element.scrollHeight > this.element.clientHeight + 1) {
      if (box.top < frame.top || box.bottom > frame.bottom) {
        this.element.scrollTop += box.top - frame.top - this.element.clientHeight / 2;
      }
    } else node.scrollIntoView({ block: "nearest" });
  }

  private node(token: number): HTMLElement {
    if (!this.nodes[token]) this.fill(this.cuts.findIndex(([start, end]) => token >= start && token < end));
    return this.nodes[token]!;
  }

  private pressed(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.nodes.length) return false;
    if (event.key === "Escape" && this.at !== null) {
      this.events.clear();
      return true;
    }
    const steps: Record<string, number> = {
      ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100, Home: -Infinity, End: Infinity,
    };
    let next: number;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") next = this.line(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" && this.at === null) next = 0;
    else if (steps[event.key] !== undefined) next = this.at === null ? 0 : this.at + steps[event.key]!;
    else return false;
    const token = clamp(next, 0, this.nodes.length - 1);
    this.events.choose(token, event.shiftKey);
    this.reveal(token);
    return true;
  }

  /** The token above or below: the nearest one in the next line. */
  private line(by: 1 | -1): number {
    if (this.at === null) return 0;
    const here = this.node(this.at).getBoundingClientRect();
    let best = this.at;
    let line: number | null = null;
    let nearest = Infinity;
    for (let place = this.at + by; place >= 0 && place < this.nodes.length; place += by) {
      const box = this.node(place).getBoundingClientRect();
      if (Math.abs(box.top - here.top) < 4) continue;
      if (line !== null && Math.abs(box.top - line) > 4) break;
      line = box.top;
      const apart = Math.abs(box.left + box.width / 2 - here.left - here.width / 2);
      if (apart < nearest) [best, nearest] = [place, apart];
    }
    return best;
  }

  close(): void {
    end(this);
    this.watch.disconnect();
  }
}
