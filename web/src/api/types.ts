// Types of the server's responses. `tests/page/test_api_types.py` compiles real responses against these types.

export interface MapInfo {
  id: number;
  name: string;
  kind: "self" | "causal" | "cross";
  heads: number;
  queries: number;
  keys: number;
  query_tokens: string | null;
  key_tokens: string | null;
  /** The weight at which the log scale begins. */
  floor: number;
}

export interface Picture {
  width: number;
  height: number;
  rows: number;
  columns: number;
  /** Number of tokens (class, registers) before the patches. */
  first: number;
}

export interface Target {
  kind: "capture" | "model" | "translator" | "images" | "language" | "mechanisms";
  title: string;
  version: string;
  tokens: Record<string, string[]>;
  maps: MapInfo[];
  image: Picture | null;
  can: ("map" | "text" | "image" | "translate" | "generate" | "run")[];
  /** The text that the model read. */
  text: string | null;
}

/** Weights that are not finite are null. In a saved page, so are weights and ranks that it does not contain. */
export type CellAnswer = { query: number; key: number; weight: number | null; rank: number | null };
export type QueryAnswer = { keys: number[]; weights: number[]; row: number[] | null };
export type KeyAnswer = { queries: number[]; weights: number[]; column: number[] | null };
export type ReceivedAnswer = { received: number[]; cells_per_entry?: number };
export type Profile = Record<"entropy" | "distance" | "first" | "previous" | "same", number | null>;
export type OverlayAnswer = { rows: number; columns: number; weights: number[] };

/** The running work of the server, for all clients. `done` is null for work without steps. */
export type Progress = { working: { what: string; done: number | null }[]; waiting: number };

export interface Hypothesis {
  text: string;
  score: number;
  source: string[];
  target: string[];
  weights: number[][];
  source_words: string[];
  target_words: string[];
  links: [number, number][];
}
export type TranslateAnswer = { hypotheses: Hypothesis[] };

/** A language model. `longest` is the number of tokens that it can read; null for any number. `chat` is whether it has a
 * chat template. */
export type LanguageInfo = { layers: number; heads: number; longest: number | null; prompt: string; chat: boolean };
/** Why a text ended: an end token, a stop string, the requested number of tokens, or the context of the model. */
export type Reason = "end" | "stop" | "length" | "context";
export type GenerationStart = { id: string; revision: number; limit: number; prompt: string[] };
export type Candidate = { token: string; id: number; probability: number };
export type GeneratedToken = Candidate & { runners_up: Candidate[] };
/** `reason` is null if more tokens follow. */
export type StepsAnswer = { revision: number; steps: GeneratedToken[]; reason: Reason | null };
export type BranchAnswer = { revision: number; limit: number };
/** The weights of a token on all tokens up to itself. */
export type AttentionAnswer = { token: number; weights: (number | null)[] };

/** The mechanisms that can be explained, with their default texts, and the title of the run, if there is one. */
export type ExplainOffer = { mechanisms: { name: string; text: string | null }[]; run: string | null };

export type RefusalAnswer = { error: string };
