// Where the page is: on a server, in a file, or in a notebook.

import type { RecordedAnswers } from "../api/recorded_answers.ts";

export const EXPLAIN = "explain.html";

export interface Embedding {
  /** Whether the page is a file with one chart. */
  chart: boolean;
  /** The answers in a file with a capture. */
  recorded: RecordedAnswers | null;
  address: Address;
  /** Whether the page has views only, without Explain. */
  viewsOnly: boolean;
}

/** The address of the page. */
export interface Address {
  /** The fragment, with its "#". */
  readonly hash: string;
  /** Whether it is the address of Explain. */
  readonly explains: boolean;
  replace(address: string): void;
  push(address: string): void;
}

export const BROWSER: Address = {
  get hash() {
    return window.location.hash;
  },
  get explains() {
    return window.location.pathname.endsWith(`/${EXPLAIN}`);
  },
  replace: (address) => window.history.replaceState(null, "", address),
  push: (address) => window.history.pushState(null, "", address),
};

/** A frame has no address of its own, and its history would be part of the notebook's. */
export function inMemory(): Address {
  let hash = "";
  const set = (address: string): void => {
    hash = address.slice(address.indexOf("#"));
  };
  return {
    get hash() {
      return hash;
    },
    explains: false,
    replace: set,
    push: set,
  };
}
