import assert from "node:assert/strict";
import { test } from "node:test";

import type { GeneratedToken, Reason, StepsAnswer } from "../src/api/types.ts";
import {
  type Generation,
  begun,
  branched,
  continues,
  follow,
  strongest,
  tokensOf,
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
