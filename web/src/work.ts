// What is being computed: told in the status line, and cancelled from there.

import { begin, end } from "./ahead.ts";
import { type Progress, answer, paths } from "./api.ts";
import { make } from "./dom.ts";
import type { Words } from "./words.ts";

/** What is computed: words, or something that tells how far it is when asked. */
export type Label = string | { toString(): string };

const PATIENCE = 250; // milliseconds before the line speaks: what is quick need not be told
const LONG = 1000; // milliseconds before the server is asked how far it is

export class Work {
  readonly element: HTMLElement;
  private words: Words;
  private readonly line: HTMLElement;
  /** Beside the line, which is read aloud whenever it changes; this changes too often for that. */
  private readonly far = make("span", "far");
  private readonly stop: HTMLButtonElement;
  private readonly running = new Map<AbortController, { label: Label; since: number }>();
  private again = 0;
  private asking = false;
  private said: { text: string; wrong: boolean } | null = null;

  constructor(words: Words) {
    this.words = words;
    this.line = make("span", { className: "said", attributes: { role: "status", "aria-live": "polite" } });
    const stop = (): void => this.cancel();
    this.stop = make("button", { className: "plain", type: "button", hidden: true, onclick: stop }, words.cancel);
    const pulse = make("i", { className: "pulse", attributes: { "aria-hidden": "true" } });
    this.element = make("footer", "status", pulse, this.line, this.far, this.stop);
    this.tell();
  }

  /** Say the same in another language: what is running goes on. */
  speak(words: Words): void {
    if (words === this.words) return;
    this.words = words;
    this.said = null;
    this.stop.textContent = words.cancel;
    this.tell();
  }

  /** Run a task under a name. Undefined when it was cancelled, or failed and that was told. */
  async run<T>(
    label: Label, task: (signal: AbortSignal) => Promise<T>, control = new AbortController(),
  ): Promise<T | undefined> {
    this.running.set(control, { label, since: performance.now() });
    begin(control, "answer");
    window.setTimeout(() => this.tell(), PATIENCE);
    try {
      const found = await task(control.signal);
      if (control.signal.aborted) return undefined;
      if (this.said?.wrong) this.said = null;
      return found;
    } catch (error) {
      if (!control.signal.aborted) this.fail(error);
      return undefined;
    } finally {
      this.running.delete(control);
      this.tell();
      end(control);
    }
  }

  get busy(): boolean {
    return !this.stop.hidden;
  }

  fail(error: unknown): void {
    const offline = error instanceof TypeError; // what fetch throws where nobody answers
    this.say(offline ? this.words.unreachable : error instanceof Error ? error.message : String(error), true);
  }

  say(text: string, wrong = false): void {
    this.said = { text, wrong };
    this.tell();
  }

  cancel(): void {
    if (!this.running.size) return;
    for (const control of [...this.running.keys()]) control.abort();
    this.say(this.words.cancelled);
  }

  private tell(): void {
    const now = performance.now();
    const slow = [...this.running.values()].filter(({ since }) => now - since >= PATIENCE - 10);
    const busy = slow.length > 0;
    this.element.classList.toggle("busy", busy);
    this.element.classList.toggle("wrong", !busy && (this.said?.wrong ?? false));
    const text = this.text(slow.map(({ label }) => String(label)));
    if (this.line.textContent !== text) this.line.textContent = text;
    this.stop.hidden = !busy;
    window.clearTimeout(this.again);
    if (busy) this.again = window.setTimeout(() => this.tell(), PATIENCE);
    else this.far.textContent = "";
    if (slow.some(({ since }) => now - since >= LONG)) void this.follow();
  }

  private text(labels: string[]): string {
    const { words } = this;
    const last = labels.at(-1);
    if (last === undefined) return this.said?.text ?? words.ready;
    return labels.length > 1 ? words.computingMore(last, labels.length - 1) : words.computing(last);
  }

  /** Ask the server what it is at and how far; one that does not tell is not asked for an excuse. */
  private async follow(): Promise<void> {
    if (this.asking) return;
    this.asking = true;
    const told = await answer<Progress>(paths.progress, AbortSignal.timeout(10 * LONG)).catch(() => null);
    this.asking = false;
    if (this.busy) this.far.textContent = told ? progress(told) : "";
  }
}

/** What is at work, and the share of it that is done where the server knows. */
export function progress({ working }: Progress): string {
  return working.map(({ what, done }) => done === null ? what : `${what}: ${Math.floor(100 * done)} %`).join(" · ");
}

/** Tasks of which only the newest matters: a new one takes back the one before. */
export class Latest {
  private control = new AbortController();
  private readonly work: Work;

  constructor(work: Work) {
    this.work = work;
  }

  run<T>(label: Label, task: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    this.stop();
    this.control = new AbortController();
    return this.work.run(label, task, this.control);
  }

  stop(): void {
    this.control.abort();
  }
}

/** Do something for many things, a few at a time, in order; stops with the signal. */
export async function each<T>(
  things: readonly T[], few: number, signal: AbortSignal, action: (thing: T) => Promise<void>,
): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    try {
      while (next < things.length && !signal.aborted) await action(things[next++]!);
    } catch (error) {
      next = things.length; // the others need not go on either
      throw error;
    }
  };
  await Promise.all(Array.from({ length: Math.min(few, things.length) }, worker));
}
