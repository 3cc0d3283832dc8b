// Pending work: requests, which the status line shows and cancels, and drawings. The page lists pending work in an
// attribute of <html>. Tests, and scripts that print the page, wait until the attribute is empty.

import { answer, paths } from "./client.ts";
import type { Progress } from "./types.ts";

type Kind = "address" | "answer" | "drawing" | "map" | "pause" | "picture" | "text";
const pending = new Map<object, Kind>();

function publish(): void {
  document.documentElement.dataset["ahead"] = [...new Set(pending.values())].join(" ");
}

/** Register pending work. Call `end` with the same object when it is finished. */
export function begin(item: object, kind: Kind): void {
  pending.set(item, kind);
  publish();
}

export function end(item: object): void {
  if (pending.delete(item)) publish();
}

/** Wait until an image can be drawn. An image that cannot be decoded is ignored. */
export async function decoded(picture: HTMLImageElement): Promise<void> {
  begin(picture, "picture");
  await picture.decode().catch(() => undefined);
  end(picture);
}

/** Description of a request: a text, or an object whose text changes with the progress and the language. */
export type Label = string | { toString(): string };

const SHOW_AFTER = 250; // milliseconds until a request is shown
const PROGRESS_AFTER = 1000; // milliseconds until the progress of the server is requested

export class PendingRequests {
  /** Labels of the requests that have been open for a while. */
  slow: string[] = [];
  message: { text: string; wrong: boolean } | null = null;
  progress: Progress | null = null;
  /** Called after every change of the above. */
  changed: () => void = () => undefined;
  private readonly open = new Map<AbortController, { label: Label; since: number }>();
  private timer = 0;
  private asking = false;

  /** Run a task. The result is undefined if it was cancelled, or failed and the message for the error was shown. */
  async run<T>(
    label: Label,
    task: (signal: AbortSignal) => Promise<T>,
    messageFor: (error: unknown) => string,
    control = new AbortController(),
  ): Promise<T | undefined> {
    this.open.set(control, { label, since: performance.now() });
    begin(control, "answer");
    window.setTimeout(() => this.update(), SHOW_AFTER);
    try {
      const result = await task(control.signal);
      if (control.signal.aborted) return undefined;
      if (this.message?.wrong) this.message = null;
      return result;
    } catch (error) {
      if (!control.signal.aborted) this.show(messageFor(error), true);
      return undefined;
    } finally {
      this.open.delete(control);
      this.update();
      end(control);
    }
  }

  get busy(): boolean {
    return this.slow.length > 0;
  }

  show(text: string | null, wrong = false): void {
    this.message = text === null ? null : { text, wrong };
    this.update();
  }

  cancel(message: string): void {
    if (!this.open.size) return;
    for (const control of [...this.open.keys()]) control.abort();
    this.show(message);
  }

  private update(): void {
    const now = performance.now();
    const slow = [...this.open.values()].filter(({ since }) => now - since >= SHOW_AFTER - 10);
    this.slow = slow.map(({ label }) => String(label));
    window.clearTimeout(this.timer);
    if (this.busy) this.timer = window.setTimeout(() => this.update(), SHOW_AFTER);
    else this.progress = null;
    if (slow.some(({ since }) => now - since >= PROGRESS_AFTER)) void this.askProgress();
    this.changed();
  }

  private async askProgress(): Promise<void> {
    if (this.asking) return;
    this.asking = true;
    const result = await answer<Progress>(paths.progress, AbortSignal.timeout(10 * PROGRESS_AFTER)).catch(() => null);
    this.asking = false;
    if (!this.busy) return;
    this.progress = result;
    this.changed();
  }
}

/** The running work of the server, with the percentage done if it is known. The server names the work in English. */
export function progressText({ working }: Progress, language: string): string {
  const texts = working.map(({ what, done }) => {
    const parts = [language === "en" ? what : "", done === null ? "" : `${Math.floor(100 * done)} %`];
    return parts.filter(Boolean).join(": ");
  });
  return texts.filter(Boolean).join(" · ");
}

/** Call `action` for each item in order, a few at a time, until the signal aborts. */
export async function each<T>(
  items: readonly T[],
  few: number,
  signal: AbortSignal,
  action: (item: T, index: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    try {
      while (next < items.length && !signal.aborted) {
        const index = next++;
        await action(items[index]!, index);
      }
    } catch (error) {
      next = items.length; // stop the other workers too
      throw error;
    }
  };
  await Promise.all(Array.from({ length: Math.min(few, items.length) }, worker));
}
