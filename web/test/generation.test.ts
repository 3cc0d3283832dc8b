import assert from "node:assert/strict";
import { test } from "node:test";

import type { GeneratedToken, Reason, StepsAnswer } from "../src/api/types.ts";
import { START } from "../src/shell/url_state.ts";
import {
  type Generation,
  beginsWith,
  begun,
  branched,
  branchesOf,
  continues,
  follow,
  requestOf,
  strongest,
  tokensOf,
  withBranch,
} from "../src/generate/generation.ts";

const token = (name: string): GeneratedToken => ({ token: name, id: 0, probability: 0.5, runners_up: [] });
const start = begun({ id: "a b", revision: 0, limit: 3, prompt: ["x", "y"] });

/** A server that knows the tokens of a text. */
function serve(text: string, reason: Reason, asked: string[] = []) {
  return async (path: string): Promise<StepsAnswer> => {
    asked.push(path);
    const from = Number(/from=(\d+)/.exec(path)![1]);
    return { revision: 0, steps: [token(text[from]!)], reason: from === text.length - 1 ? reason : null };
  };
}

test("tokens are requested and shown one after the other until the text ends", async () => {
  const [shown, asked]: [Generation[], string[]] = [[], []];
  await follow(start, serve("abc", "length", asked), (next) => shown.push(next));
  assert.deepEqual(
    shown.map((one) => tokensOf(one).join("")),
    ["xya", "xyab", "xyabc"],
  );
  assert.equal(asked[1], "api/generate/a%20b/steps?revision=0&from=1");
  assert.equal(shown.at(-1)!.reason, "length");
});

test("an aborted request ends the loop, and what was shown can be continued", async () => {
  const shown: Generation[] = [start];
  const failing = async (path: string): Promise<StepsAnswer> => {
    if (path.endsWith("from=2")) throw new Error("aborted");
    return serve("abcd", "end")(path);
  };
  await assert.rejects(follow(start, failing, (next) => shown.push(next)));
  await follow(shown.at(-1)!, serve("abcd", "end"), (next) => shown.push(next));
  assert.equal(tokensOf(shown.at(-1)!).join(""), "xyabcd");
});

test("a branch keeps the tokens before the step", async () => {
  const full: Generation = { ...start, steps: ["a", "b", "c"].map(token), reason: "end" };
  const branch = branched(full, 1, { revision: 4, limit: 3 });
  assert.deepEqual([tokensOf(branch).join(""), branch.revision, branch.reason], ["xya", 4, null]);
  assert.deepEqual([full, branch, { ...full, reason: "length" as const }].map(continues), [false, true, true]);
});

test("the strongest weights come first, and weights that are not finite count nothing", () => {
  const { positions, weights, all } = strongest([0.2, null, 0.5, 0, 0.3], 2);
  assert.deepEqual(
    [positions, weights, all],
    [
      [2, 4],
      [0.5, 0.3],
      [0.2, 0, 0.5, 0, 0.3],
    ],
  );
});

test("branches in the URL: a branch replaces those after it", () => {
  const branches = branchesOf({ branches: [3, 17, 8, 5] });
  assert.deepEqual(branches, [
    { step: 3, token: 17 },
    { step: 8, token: 5 },
  ]);
  assert.deepEqual(withBranch(branches, { step: 9, token: 1 }), [3, 17, 8, 5, 9, 1]);
  assert.deepEqual(withBranch(branches, { step: 8, token: 1 }), [3, 17, 8, 1]);
  assert.deepEqual(withBranch(branches, { step: 0, token: 1 }), [0, 1]);
  assert.deepEqual(branchesOf({ branches: null }), []);
  assert.deepEqual(
    [beginsWith(branches, branches.slice(0, 1)), beginsWith(branches.slice(0, 1), branches)],
    [true, false],
  );
});

test("a text is followed up to a number of tokens", async () => {
  const partial = await follow(start, serve("abcdef", "end"), () => undefined, 2);
  assert.deepEqual([tokensOf(partial).join(""), partial.reason], ["xyab", null]);
});

test("a request has the settings, and the stop string as it was meant", () => {
  const settings = { ...START, say: "x", stop: "\\n\\\\n" };
  const { say, seed, temperature, top_k, top_p, min_p, repetition_penalty, tokens, stop, chat } = settings;
  const body = requestOf({ say, seed, temperature, top_k, top_p, min_p, repetition_penalty, tokens, stop, chat }, 6);
  assert.deepEqual(body["stop"], ["\n\\n"]);
  assert.deepEqual(Object.keys(body).sort(), [
    ...["chat", "min_p", "repetition_penalty", "runners_up", "seed", "stop", "temperature", "text", "tokens", "top_k"],
    "top_p",
  ]);
});
