// Elements without ceremony. Text is always text: no markup is ever read from a string.

import { begin, end } from "./ahead.ts";

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null>;
type Given<T> = { [K in Exclude<keyof T, "attributes">]?: T[K] } & { attributes?: Attributes };

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  given: Given<HTMLElementTagNameMap[K]> | string = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (typeof given === "string") {
    if (given) node.className = given;
  } else {
    const { attributes, ...properties } = given;
    Object.assign(node, properties);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value !== null && value !== false) node.setAttribute(name, String(value));
    }
  }
  const there = (child: Child): child is Node | string => child !== null && child !== undefined && child !== false;
  node.append(...children.filter(there));
  return node;
}

/** An element of a drawing. */
export function draw<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number> = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** A canvas as large as its place on the screen, sharp at any pixel ratio; null while it has no size. */
export function surface(canvas: HTMLCanvasElement): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const context = canvas.getContext("2d");
  if (!width || !height || !context) return null;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Where an arrow key goes. */
export const ARROWS: Readonly<Record<string, readonly [rows: number, columns: number]>> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
};

/** A colour of the style sheet, by its name. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The last call only, once a moment has passed; unless it is taken back. */
export class Settled<A extends unknown[]> {
  private timer = 0;
  private readonly milliseconds: number;
  private readonly action: (...given: A) => void;

  constructor(milliseconds: number, action: (...given: A) => void) {
    [this.milliseconds, this.action] = [milliseconds, action];
  }

  call(...given: A): void {
    window.clearTimeout(this.timer);
    begin(this, "pause");
    this.timer = window.setTimeout(() => {
      this.action(...given);
      end(this);
    }, this.milliseconds);
  }

  cancel(): void {
    window.clearTimeout(this.timer);
    end(this);
  }
}

/** At most one call a frame of the screen. */
export function framed(action: () => void): () => void {
  let waiting = false;
  const frame = (): void => {
    waiting = false;
    action();
    end(frame);
  };
  return () => {
    if (waiting) return;
    waiting = true;
    begin(frame, "drawing");
    requestAnimationFrame(frame);
  };
}

/** A weight as people read it: 0.124, 3.1e-5; a dash for what is no number. */
export function figure(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 0.001 ? value.toFixed(3) : value.toExponential(1);
}
