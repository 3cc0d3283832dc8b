// The Generate view: a prompt, the text that a language model continues it with, and why.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import type { AttentionAnswer, LanguageInfo } from "../api/types.ts";
import { useAnswer } from "../api/use_answer.ts";
import { fill } from "../shared/translations.ts";
import { type Store, useHandlers } from "../shell/store.ts";
import { write } from "../shell/url_state.ts";
import { TokenText, shadesOf } from "../text/token_text.tsx";
import { type Generation, continues, strongest, tokensOf } from "./generation.ts";
import { PromptForm, type Settings } from "./prompt_form.tsx";
import { Attention, RunnersUp, headOf, layerOf, stepLayer } from "./token_panel.tsx";
import { type Running, useGeneration } from "./use_generation.ts";

const RUNNERS_UP = 6;
const STRONGEST = 12;
const NO_MARKS: ReadonlySet<number> = new Set();

export function GenerateView({ app }: { app: Store }) {
  const info = useAnswer<LanguageInfo>(app, paths.generate, app.words.loading, true);
  return <section class="look generate">{info && <Generator app={app} info={info} />}</section>;
}

function Generator({ app, info }: { app: Store; info: LanguageInfo }) {
  const running = useGeneration(app);
  const [chosen, setChosen] = useState<number | null>(null);
  const [attempt, setAttempt] = useState(0);
  const submitted = useRef(false);
  const settings = settingsOf(app);
  useLayoutEffect(() => {
    const { say, ...rest } = settings;
    if (!say && !submitted.current) return; // an empty prompt is only continued on request
    setChosen(null);
    running.start({ text: say, runners_up: RUNNERS_UP, ...rest });
  }, [JSON.stringify(settings), attempt]);
  const submit = (next: Settings): void => {
    submitted.current = true;
    const before = write(app.state);
    app.go(next);
    if (write(app.state) === before) setAttempt(attempt + 1);
  };
  useHandlers(app, [app, info], { key: (event) => stepLayer(app, info, event.key) });
  const { generation } = running;
  return (
    <>
      <PromptForm app={app} info={info} submit={submit} />
      {generation && (
        <Text app={app} info={info} running={running} generation={generation} chosen={chosen} choose={setChosen} />
      )}
    </>
  );
}

function settingsOf({ state }: Store): Settings {
  const { say, seed, temperature, top_p, tokens } = state;
  return { say, seed, temperature, top_p, tokens };
}

interface TextProps {
  app: Store;
  info: LanguageInfo;
  running: Running;
  generation: Generation;
  chosen: number | null;
  choose: (position: number | null) => void;
}

function Text({ app, info, running, generation, chosen: selected, choose }: TextProps) {
  const { prompt, steps } = generation;
  const tokens = useMemo(() => tokensOf(generation), [generation]);
  const chosen = selected !== null && selected < tokens.length ? selected : null;
  const [pointed, setPointed] = useState<number | null>(null);
  const weights = useAttention(app, info, generation, chosen);
  const shades = useMemo(() => weights && shadesOf(tokens.length, weights, "linear"), [weights, tokens.length]);
  const step = (chosen ?? tokens.length - 1) - prompt.length;
  const branch = (token: number): void => {
    choose(prompt.length + step);
    running.branch(step, token);
  };
  return (
    <div class="desk">
      <div class="texts">
        <TokenText
          tokens={tokens}
          label={app.words.generate.text}
          edge={prompt.length - 1}
          shades={shades}
          marks={NO_MARKS}
          span={chosen === null ? null : [chosen, chosen]}
          choose={(next) => choose(next)}
          clear={() => choose(null)}
          point={setPointed}
        />
        <Progress app={app} running={running} generation={generation} />
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
  const label = fill(app.words.work.query, { position: chosen ?? 0 });
  const attention = useAnswer<AttentionAnswer>(app, path, label);
  return useMemo(() => attention && strongest(attention.weights, STRONGEST), [attention]);
}

type ProgressProps = { app: Store; running: Running; generation: Generation };

/** Stop and continue, and why the text ended. */
function Progress({ app, running: { running, stop, resume }, generation }: ProgressProps) {
  const { generate } = app.words;
  const { steps, reason } = generation;
  const count = fill(generate.count, { count: app.count(steps.length) });
  const showMaps = async (): Promise<void> => {
    if (await app.run(app.state.say)) app.go({ view: "map", map: null, token: null, end: null, sight: null });
  };
  return (
    <div class="progress">
      {running ? (
        <button type="button" class="plain" onClick={stop}>
          {generate.stop}
        </button>
      ) : (
        <button type="button" class="plain" disabled={!continues(generation)} onClick={() => resume(app.state.tokens)}>
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
