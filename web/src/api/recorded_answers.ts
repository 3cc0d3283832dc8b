// The answers of a saved page, which has no server. `regard view --save` (server/saved_page.py) writes them.

import type { Head } from "../shell/url_state.ts";
import { type HeadWeights, type StoredWeights, readWeights, unpacked } from "./stored_weights.ts";
import type { Transport } from "./transport.ts";
import type { CellAnswer, KeyAnswer, Picture, QueryAnswer } from "./types.ts";

/** A head that is stored with tiles up to a level, and with its weights. */
export type StoredHead = { level: number; weights: StoredWeights };

/** Packed values are base64 of zlib. */
export interface Recording {
  /** Maximum size of the file in bytes. */
  limit: number;
  /** Number of heads, of which `heads` are stored in full. */
  all: number;
  /** Whether any head has less than one pixel per weight. */
  reduced: boolean;
  image: Picture | null;
  /** Packed answers by path, without version and ticket. */
  answers: Record<string, string>;
  /** By map and head: "3/0", "3/mean". */
  heads: Record<string, StoredHead>;
}

const WEIGHTS_PATH = /^api\/maps\/(\d+)\/(\w+)\/(?:(cell)|(query|key)\/(\d+))$/;

export class RecordedAnswers {
  readonly recording: Recording;
  private readonly weights = new Map<string, Promise<HeadWeights>>();

  constructor(recording: Recording) {
    this.recording = recording;
  }

  has(map: number, head: Head): boolean {
    return `${map}/${head}` in this.recording.heads;
  }

  /** The deepest level of the tiles of a head. */
  level(map: number, head: Head): number {
    return this.recording.heads[`${map}/${head}`]?.level ?? 0;
  }

  /** A stored head of a map, or of any map if it has none. */
  nearest(map: number): { map: number; head: Head } | null {
    const all = Object.keys(this.recording.heads);
    const [number, head] = (all.find((at) => at.startsWith(`${map}/`)) ?? all[0] ?? "").split("/");
    return head === undefined ? null : { map: Number(number), head: head === "mean" ? "mean" : Number(head) };
  }

  readonly send: Transport = async (path) => {
    const [name = "", query] = path.split("?");
    const field = new URLSearchParams(query);
    for (const unused of ["v", "ticket"]) field.delete(unused);
    const stored = this.recording.answers[field.size ? `${name}?${field}` : name];
    if (stored !== undefined) return new Response(await unpacked(stored));
    const derived = await this.derived(name, field);
    if (derived !== null) return Response.json(derived);
    return Response.json({ error: `This file does not contain ${name}.` }, { status: 404 });
  };

  /** Answers that follow from the stored weights. */
  private async derived(name: string, field: URLSearchParams): Promise<object | null> {
    if (name === "api/progress") return { working: [], waiting: 0 };
    if (name === "api/overlay") return this.overlay(field);
    const [, map, head, cell, side, at] = WEIGHTS_PATH.exec(name) ?? [];
    const weights = await this.weightsOf(`${map}/${head}`);
    if (!weights) return null;
    const top = Number(field.get("top") ?? 20);
    if (cell) return cellAnswer(weights, Number(field.get("query")), Number(field.get("key")));
    const { positions, values, all } =
      side === "query" ? weights.row(Number(at), top) : weights.column(Number(at), top);
    if (side === "query") return { keys: positions, weights: values, row: all } satisfies QueryAnswer;
    return { queries: positions, weights: values, column: all } satisfies KeyAnswer;
  }

  private async overlay(field: URLSearchParams): Promise<object | null> {
    const { image } = this.recording;
    const weights = await this.weightsOf(`${field.get("map")}/${field.get("head")}`);
    const row = weights?.row(Number(field.get("query")), 1).all;
    if (!image || !row) return null;
    const { rows, columns, first } = image;
    return { rows, columns, weights: row.slice(first, first + rows * columns) };
  }

  private weightsOf(at: string): Promise<HeadWeights> | null {
    const stored = this.recording.heads[at];
    if (!stored) return null;
    const known = this.weights.get(at) ?? readWeights(stored.weights);
    this.weights.set(at, known);
    return known;
  }
}

function cellAnswer(weights: HeadWeights, query: number, key: number): CellAnswer {
  const { positions, values, all } = weights.row(query, Infinity);
  const index = positions.indexOf(key);
  const weight = all?.[key] ?? values[index] ?? null;
  const rank = all ? 1 + all.filter((other) => other > all[key]!).length : index < 0 ? null : index + 1;
  return { query, key, weight, rank };
}
