// A generation as the page knows it. The server computes a token when the page asks for it, so the page stops a
// generation by asking no more.

import { paths } from "../api/client.ts";
import type { BranchAnswer, GeneratedToken, GenerationStart, Reason, StepsAnswer } from "../api/types.ts";
import type { Weights } from "../text/token_text.tsx";

export interface Generation {
  id: string;
  /** Number of branches taken. */
  revision: number;
  prompt: readonly string[];
  steps: readonly GeneratedToken[];
  /** Why there is no next token; null if there is one. */
  reason: Reason | null;
}

export function begun({ id, revision, prompt }: GenerationStart): Generation {
  return { id, revision, prompt, steps: [], reason: null };
}

/** The tokens before a step, in the revision that the server gave to the branch. */
export function branched(generation: Generation, step: number, { revision }: BranchAnswer): Generation {
  return { ...generation, revision, steps: generation.steps.slice(0, step), reason: null };
}

/** Prompt and text, token by token. */
export function tokensOf({ prompt, steps }: Generation): string[] {
  return [...prompt, ...steps.map(({ token }) => token)];
}

/** Whether more tokens may follow: those of an unfinished text, or more than were asked for. */
export function continues({ reason }: Generation): boolean {
  return reason === null || reason === "length";
}

/** Ask for one token after the other until the text ends, and show each. `ask` rejects when it is aborted. */
export async function follow(
  generation: Generation,
  ask: (path: string) => Promise<StepsAnswer>,
  show: (generation: Generation) => void,
): Promise<void> {
  let now = generation;
  while (now.reason === null) {
    const { steps, reason } = await ask(paths.steps(now.id, now.revision, now.steps.length));
    now = { ...now, steps: [...now.steps, ...steps], reason };
    show(now);
  }
}

/** The weights of a token on itself and on those before it, the strongest first. Weights that are not finite count 0. */
export function strongest(all: readonly (number | null)[], count: number): Weights {
  const finite = all.map((weight) => weight ?? 0);
  const positions = finite
    .map((_, position) => position)
    .filter((position) => finite[position]! > 0)
    .sort((one, other) => finite[other]! - finite[one]!)
    .slice(0, count);
  return { positions, weights: positions.map((position) => finite[position]!), all: finite };
}
