// Drawing on the screen: canvases, frames and pauses.

import { begin, end } from "../api/pending_requests.ts";

/** Prepare a canvas for drawing, as sharp as the screen allows; null while it has no size. */
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

/** A colour of the style sheet, by its name. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Debounce: call `action` after a delay without further calls, unless cancelled. */
export class Debounced<A extends unknown[]> {
  private timer = 0;
  private readonly milliseconds: number;
  private readonly action: (...args: A) => void;

  constructor(milliseconds: number, action: (...args: A) => void) {
    [this.milliseconds, this.action] = [milliseconds, action];
  }

  call(...args: A): void {
    window.clearTimeout(this.timer);
    begin(this, "pause");
    this.timer = window.setTimeout(() => {
      this.action(...args);
      end(this);
    }, this.milliseconds);
  }

  cancel(): void {
    window.clearTimeout(this.timer);
    end(this);
  }
}

/** Call `action` at most once per frame of the screen. */
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
