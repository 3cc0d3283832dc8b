// The Generate view: a prompt, the text with which a language model continues it, and the attention of each token.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import type { AttentionAnswer, LanguageInfo } from "../api/types.ts";
import { useAnswer } from "../api/use_answer.ts";
import { type WorkLabel, fill } from "../shared/translations.ts";
import { type Store, useHandlers } from "../shell/store.ts";
import { write } from "../shell/url_state.ts";
import { TokenText, shadesOf } from "../text/token_text.tsx";
import {
  type Generation,
  type Settings,
  branchesOf,
  continues,
  strongest,
  tokensOf,
  withBranch,
} from "./generation.ts";
import { PromptForm } from "./prompt_form.tsx";
import { Attention, RunnersUp, headOf, layerOf, stepLayer } from "./token_panel.tsx";

const STRONGEST = 12;
const NO_MARKS: ReadonlySet<number> = new Set();

export function GenerateView({ app }: { app: Store }) {
  const { generator } = app;
  const info = useAnswer<LanguageInfo>(app, generator.info ? null : paths.generate, ({ loading }) => loading, true);
  generator.info ??= info;
  return <section class="look generate">{generator.info && <Generating app={app} info={generator.info} />}</section>;
}

function Generating({ app, info }: { app: Store; info: LanguageInfo }) {
  const { generator, state } = app;
  const submitted = useRef(false);
  const settings = settingsOf(app, info);
  useLayoutEffect(() => {
    if (!settings.say && !submitted.current) return; // an empty prompt is only continued on request
    generator.show(settings, branchesOf(state));
  }, [JSON.stringify(settings), String(state.branches)]);
  const submit = (next: Settings): void => {
    submitted.current = true;
    const before = write({ ...app.state, at: null });
    app.go({ ...next, branches: null, at: null });
    if (write(app.state) === before) generator.show(settings, [], true);
  };
  useHandlers(app, [app, info], { key: (event) => stepLayer(app, info, event.key) });
  const { generation } = generator;
  return (
    <>
      <PromptForm app={app} info={info} submit={submit} />
      {generation && <Text app={app} info={info} generation={generation} />}
    </>
  );
}

function settingsOf({ state }: Store, info: LanguageInfo): Settings {
  const { say, seed, temperature, top_k, top_p, min_p, repetition_penalty, tokens, stop, chat } = state;
  return { say, seed, temperature, top_k, top_p, min_p, repetition_penalty, tokens, stop, chat: chat && info.chat };
}

type TextProps = { app: Store; info: LanguageInfo; generation: Generation };

function Text({ app, info, generation }: TextProps) {
  const { at } = app.state;
  const { prompt, steps } = generation;
  const tokens = useMemo(() => tokensOf(generation), [generation]);
  const chosen = at !== null && at < tokens.length ? at : null;
  const [pointed, setPointed] = useState<number | null>(null);
  const weights = useAttention(app, info, generation, chosen);
  const shades = useMemo(() => weights && shadesOf(tokens.length, weights, "linear"), [weights, tokens.length]);
  const step = (chosen ?? tokens.length - 1) - prompt.length;
  const choose = (position: number | null): void => app.go({ at: position }, at !== null && position !== null);
  const branch = (token: number): void =>
    app.go({ at: prompt.length + step, branches: withBranch(branchesOf(app.state), { step, token }) });
  return (
    <div class="desk">
      <div class="texts">
        <TokenText
          tokens={tokens}
          label={app.words.generate.text}
          space={app.words.text.space}
          edge={prompt.length - 1}
          shades={shades}
          marks={NO_MARKS}
          span={chosen === null ? null : [chosen, chosen]}
          choose={(next) => choose(next)}
          clear={() => choose(null)}
          point={setPointed}
        />
        <Progress app={app} generation={generation} />
      </div>
      <aside class="panel">
        {chosen === null && <p class="hint">{app.words.generate.hint}</p>}
        {steps[step] && <RunnersUp app={app} step={steps[step]} position={prompt.length + step} branch={branch} />}
        {chosen !== null && <Attention {...{ app, info, tokens, chosen, weights, pointed, choose }} />}
      </aside>
    </div>
  );
}

/** The weights of the chosen token; null until they arrive. */
function useAttention(app: Store, info: LanguageInfo, { id, revision }: Generation, chosen: number | null) {
  const path = chosen === null ? null : paths.attention(id, revision, chosen, layerOf(app, info), headOf(app, info));
  const label: WorkLabel = ({ work }) => fill(work.query, { position: chosen ?? 0 });
  const attention = useAnswer<AttentionAnswer>(app, path, label);
  return useMemo(() => attention && strongest(attention.weights, STRONGEST), [attention]);
}

/** Stop and continue, and why the text ended. */
function Progress({ app, generation }: { app: Store; generation: Generation }) {
  const { words, generator } = app;
  const { generate } = words;
  const { running } = generator;
  const { steps, reason } = generation;
  const count = fill(generate.count, { count: app.count(steps.length) });
  const showMaps = async (): Promise<void> => {
    if (await app.run(app.state.say)) app.go({ view: "map", map: null, token: null, end: null, sight: null });
  };
  return (
    <div class="progress">
      {running ? (
        <button type="button" class="plain" onClick={() => generator.stop()}>
          {generate.stop}
        </button>
      ) : (
        <button
          type="button"
          class="plain"
          disabled={!continues(generation)}
          onClick={() => generator.resume(app.state.tokens)}>
          {generate.resume}
        </button>
      )}
      <span class="hint">{running || reason === null ? count : `${count} · ${generate.reasons[reason]}`}</span>
      {!running && app.state.say && (
        <button type="button" class="plain" onClick={() => void showMaps()}>
          {generate.maps}
        </button>
      )}
    </div>
  );
}
