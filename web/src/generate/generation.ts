// A generation on the side of the page. The server computes tokens on request, so the page stops a generation by
// sending no more requests.

import { paths } from "../api/client.ts";
import type { BranchAnswer, GeneratedToken, GenerationStart, Reason, StepsAnswer } from "../api/types.ts";
import type { State } from "../shell/url_state.ts";
import type { Weights } from "../text/token_text.tsx";

/** The settings of a generation that are in the URL. */
export type Settings = Pick<
  State,
  "say" | "chat" | "seed" | "temperature" | "top_k" | "top_p" | "min_p" | "repetition_penalty" | "tokens" | "stop"
>;

export interface Generation {
  id: string;
  /** Number of branches taken. */
  revision: number;
  prompt: readonly string[];
  steps: readonly GeneratedToken[];
  /** Why there is no next token; null if there is one. */
  reason: Reason | null;
}

/** Another token, by its id, chosen at a step of the text. */
export type Branch = { step: number; token: number };

/** The branches in the URL: alternating steps and tokens. */
export function branchesOf({ branches }: Pick<State, "branches">): Branch[] {
  const numbers = branches ?? [];
  return Array.from({ length: numbers.length / 2 }, (_, index) => ({
    step: numbers[2 * index]!,
    token: numbers[2 * index + 1]!,
  }));
}

/** The numbers in the URL after another branch, which replaces those at its step and after it. */
export function withBranch(branches: readonly Branch[], branch: Branch): number[] {
  return [...branches.filter(({ step }) => step < branch.step), branch].flatMap(({ step, token }) => [step, token]);
}

/** Whether a list of branches begins with others. */
export function beginsWith(branches: readonly Branch[], others: readonly Branch[]): boolean {
  return others.every(({ step, token }, index) => branches[index]?.step === step && branches[index]?.token === token);
}

/** A stop string as typed: \n and \t are a line break and a tab. */
function stopString(typed: string): string {
  const names: Record<string, string> = { n: "\n", t: "\t", "\\": "\\" };
  return typed.replace(/\\([nt\\])/g, (_, name: string) => names[name]!);
}

/** The body of a request for a generation. */
export function requestOf({ say, stop, ...settings }: Settings, runnersUp: number): Record<string, unknown> {
  return { text: say, runners_up: runnersUp, ...settings, stop: stop ? [stopString(stop)] : [] };
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

/** Whether more tokens may follow: those of an unfinished text, or more than were requested. */
export function continues({ reason }: Generation): boolean {
  return reason === null || reason === "length";
}

/** Request one token after the other until the text ends or has `most`, and show each. `ask` rejects when it is
 * aborted. */
export async function follow(
  generation: Generation,
  ask: (path: string) => Promise<StepsAnswer>,
  show: (generation: Generation) => void,
  most = Infinity,
): Promise<Generation> {
  let now = generation;
  while (now.reason === null && now.steps.length < most) {
    const { steps, reason } = await ask(paths.steps(now.id, now.revision, now.steps.length));
    now = { ...now, steps: [...now.steps, ...steps], reason };
    show(now);
  }
  return now;
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
