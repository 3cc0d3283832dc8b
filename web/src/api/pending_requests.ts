// What is still to come: requests, which the status line shows and cancels, and drawings. The page lists all of it in an
// attribute of <html>, so that tests (and scripts that print the page) know when it is finished: the attribute is empty.

import { answer, paths } from "./client.ts";
import type { Progress } from "./types.ts";

type Kind = "address" | "answer" | "drawing" | "map" | "pause" | "picture" | "text";
const pending = new Map<object, Kind>();

function publish(): void {
  document.documentElement.dataset["ahead"] = [...new Set(pending.values())].join(" ");
}

/** Note that something is to come; call `end` with the same object when it is there. */
export function begin(thing: object, kind: Kind): void {
  pending.set(thing, kind);
  publish();
}

export function end(thing: object): void {
  if (pending.delete(thing)) publish();
}

/** Wait until a picture can be drawn. A picture that cannot be read is not waited for. */
export async function decoded(picture: HTMLImageElement): Promise<void> {
  begin(picture, "picture");
  await picture.decode().catch(() => undefined);
  end(picture);
}

/** What is computed: a text, or an object whose text changes with the progress. */
export type Label = string | { toString(): string };

const PATIENCE = 250; // milliseconds until a request is shown
const LONG = 1000; // milliseconds until the server is asked for its progress

export class PendingRequests {
  /** Labels of the requests that have been open for a while. */
  slow: string[] = [];
  message: { text: string; wrong: boolean } | null = null;
  /** The server's progress, as text. */
  progress = "";
  /** Called after every change of the above. */
  changed: () => void = () => undefined;
  private readonly open = new Map<AbortController, { label: Label; since: number }>();
  private timer = 0;
  private asking = false;

  /** Run a task. The result is undefined if it was cancelled, or failed and the message was shown. */
  async run<T>(
    label: Label,
    task: (signal: AbortSignal) => Promise<T>,
    unreachable: string,
    control = new AbortController(),
  ): Promise<T | undefined> {
    this.open.set(control, { label, since: performance.now() });
    begin(control, "answer");
    window.setTimeout(() => this.update(), PATIENCE);
    try {
      const result = await task(control.signal);
      if (control.signal.aborted) return undefined;
      if (this.message?.wrong) this.message = null;
      return result;
    } catch (error) {
      const offline = error instanceof TypeError; // fetch throws it if the server cannot be reached
      const text = offline ? unreachable : error instanceof Error ? error.message : String(error);
      if (!control.signal.aborted) this.show(text, true);
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
    const slow = [...this.open.values()].filter(({ since }) => now - since >= PATIENCE - 10);
    this.slow = slow.map(({ label }) => String(label));
    window.clearTimeout(this.timer);
    if (this.busy) this.timer = window.setTimeout(() => this.update(), PATIENCE);
    else this.progress = "";
    if (slow.some(({ since }) => now - since >= LONG)) void this.askProgress();
    this.changed();
  }

  private async askProgress(): Promise<void> {
    if (this.asking) return;
    this.asking = true;
    const found = await answer<Progress>(paths.progress, AbortSignal.timeout(10 * LONG)).catch(() => null);
    this.asking = false;
    if (!this.busy) return;
    this.progress = found ? progressText(found) : "";
    this.changed();
  }
}

/** What the server works on, and how much of it is done where the server knows. */
export function progressText({ working }: Progress): string {
  return working.map(({ what, done }) => (done === null ? what : `${what}: ${Math.floor(100 * done)} %`)).join(" · ");
}

/** Call `action` for many things, a few at a time, in order; stop with the signal. */
export async function each<T>(
  things: readonly T[],
  few: number,
  signal: AbortSignal,
  action: (thing: T, index: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    try {
      while (next < things.length && !signal.aborted) {
        const index = next++;
        await action(things[index]!, index);
      }
    } catch (error) {
      next = things.length; // stop the other workers too
      throw error;
    }
  };
  await Promise.all(Array.from({ length: Math.min(few, things.length) }, worker));
}
