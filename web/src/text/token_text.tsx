// A text of tokens with colours, selection and keyboard navigation. The parts of a long text are drawn when they become
// visible, so that a hundred thousand tokens are as fast as one screen.

import { Component, type VNode, createRef } from "preact";

import { begin, end } from "../api/pending_requests.ts";
import { clamp, modified } from "../shared/format.ts";
import { type Scale, shade } from "../shared/palette.ts";
import { type Spelled, parts, spell } from "./token_spelling.ts";

const STEPS: Readonly<Record<string, number>> = {
  ArrowLeft: -1,
  ArrowRight: 1,
  PageUp: -100,
  PageDown: 100,
  Home: -Infinity,
  End: Infinity,
};

/** Below this shade a line's end is grey; above the other, the text of a token has the opposite colour (`style.css`). */
const FAINT = 0.05;
const DEEP = 0.85;

/** Weights of some tokens, the strongest first, and of all tokens if the server sent them. */
export type Weights = { positions: readonly number[]; weights: readonly number[]; all: readonly number[] | null };

/** A shade in [0, 1] for each of `size` tokens. */
export function shadesOf(size: number, { positions, weights, all }: Weights, scale: Scale): Float32Array {
  const shades = new Float32Array(size);
  const strongest = Math.max(...weights, 1e-12);
  if (all) all.forEach((weight, position) => (shades[position] = shade(weight, strongest, scale)));
  else positions.forEach((position, rank) => (shades[position] = shade(weights[rank]!, strongest, scale)));
  return shades;
}

interface Marked {
  /** A number in [0, 1] for each token; null for no colours. */
  shades: ArrayLike<number> | null;
  marks: ReadonlySet<number>;
  /** The selected token or span, in the order of selection. */
  span: readonly [start: number, end: number] | null;
}

interface TokenTextProps extends Marked {
  tokens: readonly string[];
  label: string;
  /** The name of a token of spaces, for screen readers. */
  space: string;
  choose: (token: number, lengthen: boolean) => void;
  clear: () => void;
  /** Called with the token under the mouse, and with null when the mouse leaves. */
  point?: (token: number | null) => void;
  /** The last token before a mark, such as the end of a prompt. */
  edge?: number;
  /** Receives the component, whose `reveal` the parent calls. */
  handle?: { current: TokenText | null } | null;
}

let count = 0;

export class TokenText extends Component<TokenTextProps> {
  private readonly id = `text${(count += 1)}`;
  private readonly root = createRef<HTMLDivElement>();
  private readonly drawn = new Set<number>();
  private spelled: Spelled[] = [];
  private parts: [number, number][] = [];
  private watch!: IntersectionObserver;
  private awaited: { token: number; within: boolean } | null = null; // to reveal once its part is drawn

  constructor(props: TokenTextProps) {
    super(props);
    this.read(props.tokens);
  }

  private read(tokens: readonly string[]): void {
    this.spelled = spell(tokens);
    this.parts = parts(this.spelled);
  }

  override componentWillReceiveProps(next: TokenTextProps): void {
    const before = this.props.tokens;
    if (next.tokens === before) return;
    this.read(next.tokens);
    const grows = next.tokens.length > before.length && before.every((token, index) => token === next.tokens[index]);
    if (!grows) this.drawn.clear(); // what is drawn of a growing text stays
  }

  override shouldComponentUpdate(next: TokenTextProps): boolean {
    const { tokens, label, space, shades, marks, span } = this.props;
    const names = label === next.label && space === next.space;
    const same = names && tokens === next.tokens && shades === next.shades && marks === next.marks;
    return !same || String(span) !== String(next.span);
  }

  override componentDidMount(): void {
    if (this.props.handle) this.props.handle.current = this;
    this.observe();
  }

  override componentDidUpdate(before: TokenTextProps): void {
    if (before.tokens !== this.props.tokens) this.observe();
    if (this.awaited && this.node(this.awaited.token)) this.reveal(this.awaited.token, this.awaited.within);
  }

  override componentWillUnmount(): void {
    end(this);
    this.watch.disconnect();
  }

  /** Draw the parts that become visible. */
  private observe(): void {
    this.watch?.disconnect();
    begin(this, "text"); // the first parts are drawn when they have a layout
    const seen = (entries: IntersectionObserverEntry[]): void => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) this.drawn.add(Number((target as HTMLElement).dataset["part"]));
      }
      this.forceUpdate();
      end(this);
    };
    this.watch = new IntersectionObserver(seen, { rootMargin: "600px" });
    for (const part of this.root.current!.children) this.watch.observe(part);
  }

  /** The end of the span that moves. */
  private get at(): number | null {
    return this.props.span?.[1] ?? null;
  }

  override render({ tokens, label, space, shades, marks, span, choose, point, edge }: TokenTextProps): VNode {
    const clicked = (event: MouseEvent): void => {
      const token = tokenUnder(event);
      if (token !== null) choose(token, event.shiftKey);
    };
    if (this.at !== null && this.at < tokens.length) this.drawn.add(this.partOf(this.at));
    return (
      <div
        class="tokens"
        tabIndex={0}
        role="listbox"
        aria-label={label}
        aria-activedescendant={this.at === null ? undefined : `${this.id}-${this.at}`}
        ref={this.root}
        onKeyDown={(event) => this.pressed(event) && event.preventDefault()}
        onMouseDown={(event) => event.shiftKey && event.preventDefault()} // the browser would select text
        onClick={clicked}
        onPointerMove={point && ((event) => point(tokenUnder(event)))}
        onPointerLeave={point && (() => point(null))}>
        {this.parts.map(([start, stop], index) => (
          <Part
            key={`${start} ${stop}`}
            index={index}
            start={start}
            tokens={this.spelled.slice(start, stop)}
            id={this.id}
            name={space}
            drawn={this.drawn.has(index)}
            shades={shades}
            marks={marks}
            span={span}
            edge={edge}
          />
        ))}
      </div>
    );
  }

  private partOf(token: number): number {
    return this.parts.findIndex(([start, stop]) => token >= start && token < stop);
  }

  /** The element of a token; null if its part is not drawn. */
  private node(token: number): HTMLElement | null {
    return document.getElementById(`${this.id}-${token}`);
  }

  /** The box of a token; that of its part if the part is not drawn. */
  private box(token: number): DOMRect {
    return (this.node(token) ?? this.root.current!.children[this.partOf(token)]!).getBoundingClientRect();
  }

  /** Scroll the text to a token, and unless `within` also the page, as little as possible. Its part is drawn first. */
  reveal(token: number, within = false): void {
    const node = this.node(token);
    this.awaited = node ? null : { token, within };
    if (node) return this.scrollTo(node, within);
    this.drawn.add(this.partOf(token));
    this.forceUpdate();
  }

  private scrollTo(node: HTMLElement, within: boolean): void {
    const root = this.root.current!;
    const [box, frame] = [node.getBoundingClientRect(), root.getBoundingClientRect()];
    const whole = root.scrollHeight <= root.clientHeight + 1;
    if (whole) return within ? undefined : node.scrollIntoView({ block: "nearest" });
    if (box.top < frame.top || box.bottom > frame.bottom) root.scrollTop += box.top - frame.top - root.clientHeight / 2;
  }

  private pressed(event: KeyboardEvent): boolean {
    const { tokens, choose, clear } = this.props;
    if (modified(event) || !tokens.length) return false;
    if (event.key === "Escape" && this.at !== null) {
      clear();
      return true;
    }
    let next: number;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") next = this.line(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" && this.at === null) next = 0;
    else if (STEPS[event.key] !== undefined) next = this.at === null ? 0 : this.at + STEPS[event.key]!;
    else return false;
    const token = clamp(next, 0, tokens.length - 1);
    choose(token, event.shiftKey);
    this.reveal(token);
    return true;
  }

  /** The token above or below: the nearest one in the next line. */
  private line(by: 1 | -1): number {
    if (this.at === null) return 0;
    const here = this.box(this.at);
    let best = this.at;
    let line: number | null = null;
    let nearest = Infinity;
    for (let token = this.at + by; token >= 0 && token < this.props.tokens.length; token += by) {
      const box = this.box(token);
      if (Math.abs(box.top - here.top) < 4) continue;
      if (line !== null && Math.abs(box.top - line) > 4) break;
      line = box.top;
      const apart = Math.abs(box.left + box.width / 2 - here.left - here.width / 2);
      if (apart < nearest) [best, nearest] = [token, apart];
    }
    return best;
  }
}

function tokenUnder(event: MouseEvent): number | null {
  const node = (event.target as HTMLElement).closest<HTMLElement>("[data-token]");
  return node && Number(node.dataset["token"]);
}

interface PartProps extends Marked {
  index: number;
  start: number;
  tokens: readonly Spelled[];
  id: string;
  /** The name of a token of spaces. */
  name: string;
  drawn: boolean;
  edge: number | undefined;
}

class Part extends Component<PartProps> {
  override shouldComponentUpdate(next: PartProps): boolean {
    const { drawn, name, shades, marks, span } = this.props;
    if (!drawn && !next.drawn) return false;
    const same = drawn === next.drawn && name === next.name && shades === next.shades && marks === next.marks;
    return !same || String(span) !== String(next.span);
  }

  override render({ index, start, tokens, drawn }: PartProps): VNode {
    if (drawn) {
      return (
        <div class="part" data-part={index} role="presentation">
          {tokens.flatMap((token, offset) => this.token(token, start + offset, offset > 0))}
        </div>
      );
    }
    const letters = tokens.reduce((sum, token) => sum + token.text.length + 1, 0);
    const height = `${Math.ceil(letters / 80) * 1.9}em`; // an estimate until it is drawn
    return <div class="part" data-part={index} role="presentation" style={{ minHeight: height }} />;
  }

  private token({ text, space, breaks }: Spelled, position: number, spaced: boolean): (VNode | string)[] {
    const { id, name, shades, marks, span, edge } = this.props;
    const shade = shades?.[position] ?? 0;
    const chosen = span !== null && position >= Math.min(...span) && position <= Math.max(...span);
    const classes = {
      newline: /^⏎+$/.test(text) && shade < FAINT,
      deep: shade > DEEP,
      marked: marks.has(position),
      chosen,
      edge: position === edge,
    };
    const names = Object.entries(classes).flatMap(([name, active]) => (active ? [name] : []));
    const node = (
      <span
        key={position}
        id={`${id}-${position}`}
        role="option"
        data-token={position}
        aria-label={text.trim() || !text ? undefined : name}
        class={names.join(" ") || undefined}
        aria-selected={chosen ? "true" : undefined}
        style={{ "--w": shade.toFixed(3) }}>
        {text || "∅"}
      </span>
    );
    return [...(space && spaced ? [" "] : []), node, ...(breaks ? [<br key={`line ${position}`} />] : [])];
  }
}
