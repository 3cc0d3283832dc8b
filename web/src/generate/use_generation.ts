// A hook that runs a generation: start, stop, continue, branch.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { answer, paths } from "../api/client.ts";
import type { BranchAnswer, GenerationStart, StepsAnswer } from "../api/types.ts";
import type { Store } from "../shell/store.ts";
import { type Generation, begun, branched, follow } from "./generation.ts";

export interface Running {
  generation: Generation | null;
  running: boolean;
  start: (settings: Record<string, string | number>) => void;
  stop: () => void;
  /** Go on; `tokens` more if the text has the length that was asked for. */
  resume: (tokens: number) => void;
  /** Choose another token at a step, and go on from there. */
  branch: (step: number, token: number) => void;
}

export function useGeneration(app: Store): Running {
  const [generation, setGeneration] = useState<Generation | null>(null);
  const [running, setRunning] = useState(false);
  const control = useRef(new AbortController());
  useLayoutEffect(() => () => control.current.abort(), []);
  const run = (first: (signal: AbortSignal) => Promise<Generation>): void => {
    control.current.abort();
    const own = new AbortController();
    control.current = own;
    setRunning(true);
    const show = (next: Generation): void => {
      if (!own.signal.aborted) setGeneration(next);
    };
    const task = async (signal: AbortSignal): Promise<void> => {
      const next = await first(signal);
      show(next);
      await follow(next, (path) => answer<StepsAnswer>(path, signal), show);
    };
    void app.request(app.words.work.generation, task, own).then(() => {
      if (control.current === own) setRunning(false);
    });
  };
  return {
    generation,
    running,
    start: (settings) => run(async (signal) => begun(await answer<GenerationStart>(paths.generate, signal, settings))),
    stop: () => control.current.abort(),
    resume: (tokens) => generation && run((signal) => resumed(generation, tokens, signal)),
    branch: (step, token) =>
      generation &&
      run(async (signal) => {
        const path = paths.branch(generation.id, generation.revision);
        return branched(generation, step, await answer<BranchAnswer>(path, signal, { step, token }));
      }),
  };
}

async function resumed(generation: Generation, tokens: number, signal: AbortSignal): Promise<Generation> {
  if (generation.reason === null) return generation;
  await answer<BranchAnswer>(paths.resume(generation.id, generation.revision), signal, { tokens });
  return { ...generation, reason: null };
}
