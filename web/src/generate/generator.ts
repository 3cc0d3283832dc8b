// Runs a generation: start, stop, continue, branch. It belongs to the page and not to the view, so that the text is
// kept, and goes on, while another view is shown.

import { answer, paths } from "../api/client.ts";
import type { BranchAnswer, GenerationStart, LanguageInfo, StepsAnswer } from "../api/types.ts";
import type { Store } from "../shell/store.ts";
import {
  type Branch,
  type Generation,
  type Settings,
  beginsWith,
  begun,
  branched,
  continues,
  follow,
  requestOf,
} from "./generation.ts";

const RUNNERS_UP = 6;

export class Generator {
  /** The server's description of the model, once it arrived. */
  info: LanguageInfo | null = null;
  generation: Generation | null = null;
  running = false;
  private control = new AbortController();
  /** Whether `generation` has the settings below: the previous text is shown until the first answer. */
  private started = false;
  /** The settings of the generation, and the branches that were taken. */
  private settings = "";
  private taken: readonly Branch[] = [];
  /** The branches to take. */
  private wanted: readonly Branch[] = [];
  private readonly app: Store;

  constructor(app: Store) {
    this.app = app;
  }

  /** Generate the text of these settings and branches. Does nothing if that is the current text, unless `again`. */
  show(settings: Settings, branches: readonly Branch[], again = false): void {
    const key = JSON.stringify(settings);
    const same = !again && key === this.settings;
    const present = this.running ? this.wanted : this.taken;
    if (same && branches.length === present.length && beginsWith(branches, present)) return;
    const from = same && this.started && beginsWith(branches, this.taken) ? this.generation : null;
    if (!from) [this.settings, this.taken, this.started] = [key, [], false];
    this.wanted = branches;
    this.run(async (signal, show) => {
      let now = from;
      if (!now) {
        now = begun(await answer<GenerationStart>(paths.generate, signal, requestOf(settings, RUNNERS_UP)));
        this.started = !signal.aborted;
        show(now);
      }
      for (const branch of branches.slice(this.taken.length)) {
        const next = await this.branch(now, branch, signal, show);
        if (!next) break;
        now = next;
        this.taken = [...this.taken, branch];
        show(now);
      }
      return now;
    });
  }

  stop(): void {
    this.control.abort();
  }

  /** Continue; with `tokens` more tokens if the text has the requested length. */
  resume(tokens: number): void {
    const { generation } = this;
    if (generation) this.run((signal) => resumed(generation, tokens, signal));
  }

  /** Take a branch, after generating the tokens before it; null if the text ends before. */
  private async branch(
    generation: Generation,
    { step, token }: Branch,
    signal: AbortSignal,
    show: (next: Generation) => void,
  ): Promise<Generation | null> {
    const ask = (path: string): Promise<StepsAnswer> => answer<StepsAnswer>(path, signal);
    let now = await follow(generation, ask, show, step + 1);
    if (now.steps.length <= step && continues(now)) {
      now = await follow(await resumed(now, step + 1 - now.steps.length, signal), ask, show, step + 1);
    }
    if (now.steps.length <= step) return null;
    const body = { step, token };
    return branched(now, step, await answer<BranchAnswer>(paths.branch(now.id, now.revision), signal, body));
  }

  /** Run `first`, then request tokens until the text ends. A newer run aborts this one. */
  private run(first: (signal: AbortSignal, show: (next: Generation) => void) => Promise<Generation>): void {
    this.control.abort();
    const own = new AbortController();
    this.control = own;
    const show = (next: Generation): void => {
      if (own.signal.aborted) return;
      this.generation = next;
      this.changed();
    };
    const task = async (signal: AbortSignal): Promise<void> => {
      const next = await first(signal, show);
      show(next);
      await follow(next, (path) => answer<StepsAnswer>(path, signal), show);
    };
    this.running = true;
    this.changed();
    void this.app
      .request(({ work }) => work.generation, task, own)
      .then(() => {
        if (this.control !== own) return;
        this.running = false;
        if (!this.started) [this.settings, this.generation] = ["", null]; // refused, or stopped before the first answer
        this.changed();
      });
  }

  private changed(): void {
    if (this.app.state.view === "generate" && !this.app.explains) this.app.changed();
  }
}

async function resumed(generation: Generation, tokens: number, signal: AbortSignal): Promise<Generation> {
  if (generation.reason === null) return generation;
  await answer<BranchAnswer>(paths.resume(generation.id, generation.revision), signal, { tokens });
  return { ...generation, reason: null };
}
