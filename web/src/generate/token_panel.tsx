// Beside the text: the probabilities of a token and of its runners-up, and what the token attended to.

import type { ComponentChildren } from "preact";

import type { GeneratedToken, LanguageInfo } from "../api/types.ts";
import { Select, WeightList } from "../shared/controls.tsx";
import { figure } from "../shared/format.ts";
import { Legend } from "../shared/legend.tsx";
import { Readout } from "../shared/readout.tsx";
import { fill } from "../shared/translations.ts";
import { type Store, headName } from "../shell/store.ts";
import type { Head } from "../shell/url_state.ts";
import { positionIfRepeated, show } from "../text/token_spelling.ts";
import type { Weights } from "../text/token_text.tsx";

interface RunnersUpProps {
  app: Store;
  step: GeneratedToken;
  /** Position of the token, counted from the start of the prompt. */
  position: number;
  branch: (token: number) => void;
}

/** The chosen token and the most probable others. Choosing one of them continues the text with it. */
export function RunnersUp({ app, step, position, branch }: RunnersUpProps) {
  const { generate } = app.words;
  const most = Math.max(step.probability, ...step.runners_up.map(({ probability }) => probability));
  return (
    <section class="card">
      <h2>{fill(generate.chosen, { token: show(step.token), position })}</h2>
      <table class="runners">
        <thead>
          <tr>
            <th scope="col">{generate.token}</th>
            <th scope="col" colSpan={2}>
              {generate.probability}
            </th>
          </tr>
        </thead>
        <tbody>
          <Row probability={step.probability} most={most} taken>
            {show(step.token)}
          </Row>
          {step.runners_up.map(({ token, id, probability }) => (
            <Row key={id} probability={probability} most={most}>
              <button type="button" title={fill(generate.branch, { token: show(token) })} onClick={() => branch(id)}>
                {show(token)}
              </button>
            </Row>
          ))}
        </tbody>
      </table>
      <p class="hint">{generate.branchHint}</p>
    </section>
  );
}

type RowProps = { probability: number; most: number; taken?: boolean; children: ComponentChildren };

/** A token with its probability, and a bar relative to the highest one. */
function Row({ probability, most, taken, children }: RowProps) {
  return (
    <tr class={taken ? "taken" : undefined}>
      <th scope="row">{children}</th>
      <td>
        <i class="measure" style={{ "--share": String(most > 0 ? probability / most : 0) }} />
      </td>
      <td class="number">{figure(probability)}</td>
    </tr>
  );
}

interface AttentionProps {
  app: Store;
  info: LanguageInfo;
  tokens: readonly string[];
  /** Position of the chosen token. */
  chosen: number;
  weights: Weights | null;
  /** Position of the token under the mouse. */
  pointed: number | null;
  choose: (position: number) => void;
}

/** The attention of the chosen token in one layer and head. */
export function Attention({ app, info, tokens, chosen, weights, pointed, choose }: AttentionProps) {
  const { generate } = app.words;
  const items = (weights?.positions ?? []).map((position, rank) => ({
    name: show(tokens[position] ?? ""),
    position: positionIfRepeated(tokens, position),
    weight: weights!.weights[rank]!,
    shown: figure(weights!.weights[rank]!),
    choose: () => choose(position),
  }));
  const most = items[0]?.weight ?? 0;
  const weight = pointed === null ? undefined : weights?.all?.[pointed];
  return (
    <section class="card">
      <Readout name={`“${show(tokens[chosen] ?? "")}”`} readings={items} />
      <h2>{fill(generate.attends, { token: show(tokens[chosen] ?? "") })}</h2>
      <LayerChoice app={app} info={info} />
      <Legend app={app} low={0} high={most} />
      <p class="hint told">
        {weight === undefined
          ? "\u00a0"
          : fill(generate.weight, { token: show(tokens[pointed!] ?? ""), weight: figure(weight) })}
      </p>
      <WeightList items={items} strongest={most} />
    </section>
  );
}

/** The layer of the URL, or the last one. */
export function layerOf({ state }: Store, { layers }: LanguageInfo): number {
  return Math.min(state.layer ?? layers - 1, layers - 1);
}

export function headOf({ state }: Store, { heads }: LanguageInfo): Head {
  return state.head === "mean" ? "mean" : Math.min(state.head, heads - 1);
}

function LayerChoice({ app, info }: { app: Store; info: LanguageInfo }) {
  const { map } = app.words;
  const layers = Array.from({ length: info.layers }, (_, layer): [string, string] => [String(layer), String(layer)]);
  const heads = headsOf(info).map((head): [string, string] => [String(head), headName(app, head)]);
  const chooseHead = (value: string): void => app.go({ head: value === "mean" ? "mean" : Number(value) });
  return (
    <div class="pair">
      <Select
        label={map.layer}
        options={layers}
        value={String(layerOf(app, info))}
        choose={(value) => app.go({ layer: Number(value) })}
      />
      <Select label={map.head} options={heads} value={String(headOf(app, info))} choose={chooseHead} />
    </div>
  );
}

function headsOf({ heads }: LanguageInfo): Head[] {
  return ["mean", ...Array.from({ length: heads }, (_, head) => head)];
}

/** The keys [ ] { }: previous and next head, previous and next layer. */
export function stepLayer(app: Store, info: LanguageInfo, key: string): boolean {
  if (key === "[" || key === "]") {
    const heads = headsOf(info);
    const next = heads.indexOf(headOf(app, info)) + (key === "]" ? 1 : -1);
    app.go({ head: heads[(next + heads.length) % heads.length]! });
    return true;
  }
  if (key !== "{" && key !== "}") return false;
  const layer = layerOf(app, info) + (key === "}" ? 1 : -1);
  if (layer >= 0 && layer < info.layers) app.go({ layer });
  return true;
}
