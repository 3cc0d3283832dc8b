// The Translate view: a sentence, the results of the beam search, and the alignment of words.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { answer, paths } from "../api/client.ts";
import type { Hypothesis, TranslateAnswer } from "../api/types.ts";
import { Choice, Select } from "../shared/controls.tsx";
import { type Cell, figure } from "../shared/format.ts";
import { Legend, gradient, lowest } from "../shared/legend.tsx";
import type { Scale } from "../shared/palette.ts";
import { type Words, fill } from "../shared/translations.ts";
import type { Store } from "../shell/store.ts";
import { positionIfRepeated, show } from "../text/token_spelling.ts";
import { AlignmentMatrix, strongestOf } from "./alignment_matrix.tsx";

const BEAMS = ["1", "3", "5", "10"].map((beam): [string, string] => [beam, beam]);

/** The hypotheses for the sentence in the address, and a function that translates it again. */
function useHypotheses(app: Store, beam: string): [Hypothesis[], () => void] {
  const { say } = app.state;
  const [hypotheses, setHypotheses] = useState<Hypothesis[]>([]);
  const [attempt, setAttempt] = useState(0);
  useLayoutEffect(() => {
    if (!say) return undefined;
    const control = new AbortController();
    let latest = true;
    const body = { text: say, beam: Number(beam), n_best: Number(beam) };
    const task = (signal: AbortSignal): Promise<TranslateAnswer> => answer(paths.translate, signal, body);
    void app
      .request(({ work }) => work.translation, task, control)
      .then((answer) => {
        if (!latest) return;
        setHypotheses(answer?.hypotheses ?? []); // those of another sentence would stay beside this one
        if (answer?.hypotheses[0]?.weights.length) void followText(app, say);
      });
    return () => {
      latest = false;
      control.abort();
    };
  }, [say, attempt]);
  return [hypotheses, () => setAttempt(attempt + 1)];
}

export function TranslateView({ app }: { app: Store }) {
  const { say } = app.state;
  const [beam, setBeam] = useState("5");
  const [scale, setScale] = useState<Scale>("linear");
  const [shown, setShown] = useState(0);
  const [hypotheses, repeat] = useHypotheses(app, beam);
  useLayoutEffect(() => setShown(0), [hypotheses]);
  const submit = (text: string): void => {
    if (!text) app.requests.show(app.words.translate.empty, true);
    else if (text === say) repeat();
    else app.go({ say: text });
  };
  const chosen = hypotheses[shown];
  return (
    <section class="look translate">
      <Form app={app} submit={submit} beam={beam} setBeam={setBeam} scale={scale} setScale={setScale} />
      <div class="results">
        {hypotheses.length > 0 && <Hypotheses app={app} hypotheses={hypotheses} shown={shown} setShown={setShown} />}
      </div>
      <div class="detail">{chosen && <Detail app={app} hypothesis={chosen} scale={scale} />}</div>
    </section>
  );
}

/** Let Map and Text show the attention behind the translation of a text; false if that failed. */
async function followText(app: Store, text: string): Promise<boolean> {
  if (!app.target.can.includes("run")) return false;
  return app.target.text === text || app.run(text);
}

/** The alignment of words; a model with a fixed context has none. */
function Detail({ app, hypothesis, scale }: { app: Store; hypothesis: Hypothesis; scale: Scale }) {
  if (!hypothesis.weights.length) return null;
  return (
    <>
      <WordByWord words={app.words} hypothesis={hypothesis} />
      <Alignment app={app} hypothesis={hypothesis} scale={scale} />
    </>
  );
}

interface FormProps {
  app: Store;
  submit: (text: string) => void;
  beam: string;
  setBeam: (beam: string) => void;
  scale: Scale;
  setScale: (scale: Scale) => void;
}

function Form({ app, submit, beam, setBeam, scale, setScale }: FormProps) {
  const { words, state } = app;
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    box.current!.value = state.say;
  }, [state.say]);
  const send = (event: Event): void => {
    event.preventDefault();
    submit(box.current!.value.trim());
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return (
    <form class="say" onSubmit={send}>
      <label class="field wide">
        <span>{words.translate.label}</span>
        <textarea ref={box} rows={2} placeholder={words.translate.placeholder} maxLength={2000} onKeyDown={pressed} />
      </label>
      <div class="between">
        <Select label={words.translate.beam} options={BEAMS} value={beam} choose={setBeam} />
        <Choice label={words.map.scale} names={words.map.scales} value={scale} choose={setScale} />
        <button type="submit" class="main">
          {words.translate.go}
        </button>
      </div>
    </form>
  );
}

/** A score with two decimals and a typographic minus, without a sign if it rounds to zero. */
export function scoreText(score: number): string {
  const text = score.toFixed(2);
  return text === "-0.00" ? "0.00" : text.replace("-", "−");
}

type HypothesesProps = { app: Store; hypotheses: Hypothesis[]; shown: number; setShown: (shown: number) => void };

function Hypotheses({ app, hypotheses, shown, setShown }: HypothesesProps) {
  const { translate: words } = app.words;
  /** Show every map behind the best translation. */
  const showMaps = async (): Promise<void> => {
    if (await followText(app, app.state.say)) app.go({ view: "map", map: null, token: null, end: null, sight: null });
  };
  return (
    <>
      <header class="between">
        <h2>{words.hypotheses}</h2>
        {app.target.can.includes("run") && (
          <button type="button" class="plain" onClick={() => void showMaps()}>
            {words.maps}
          </button>
        )}
      </header>
      <ol class="hypotheses">
        {hypotheses.map((one, rank) => (
          <li key={rank}>
            <label class="hypothesis">
              <input type="radio" name="hypothesis" checked={rank === shown} onChange={() => setShown(rank)} />
              <span class="written">{one.text || words.nothing}</span>
              <span class="number">
                {words.score} {scoreText(one.score)}
              </span>
            </label>
          </li>
        ))}
      </ol>
    </>
  );
}

type Side = 0 | 1;

/** Both sentences. A hovered word is highlighted together with the words it is linked to. */
function WordByWord({ words, hypothesis }: { words: Words; hypothesis: Hypothesis }) {
  const [lit, setLit] = useState<{ side: Side; index: number } | null>(null);
  const classOf = (side: Side, index: number): string => {
    if (lit?.side === side) return lit.index === index ? "word lit" : "word";
    const linked = lit && hypothesis.links.some((link) => link[lit.side] === lit.index && link[side] === index);
    return linked ? "word linked" : "word";
  };
  const line = (texts: string[], side: Side) => (
    <p>
      {texts.map((text, index) => {
        const light = (): void => setLit({ side, index });
        const clear = (): void => setLit(null);
        return (
          <button
            key={index}
            type="button"
            class={classOf(side, index)}
            onPointerEnter={light}
            onFocus={light}
            onClick={light}
            onPointerLeave={clear}
            onBlur={clear}>
            {text}
          </button>
        );
      })}
    </p>
  );
  return (
    <section class="card">
      <h2>{words.translate.words}</h2>
      <p class="hint">{words.translate.wordsHint}</p>
      <div class="sentences" role="group" aria-label={words.translate.words}>
        {line(hypothesis.source_words, 0)}
        {line(hypothesis.target_words, 1)}
      </div>
    </section>
  );
}

/** A token, with its position if there are several like it. */
function numbered(tokens: string[], position: number): string {
  const repeated = positionIfRepeated(tokens, position);
  return repeated === null ? show(tokens[position]!) : `${show(tokens[position]!)} (${repeated})`;
}

function Alignment({ app, hypothesis, scale }: { app: Store; hypothesis: Hypothesis; scale: Scale }) {
  const { words, theme } = app;
  const { source, target, weights } = hypothesis;
  const [cell, setCell] = useState<Cell | null>(null);
  useLayoutEffect(() => setCell(null), [hypothesis]);
  const strongest = strongestOf(weights);
  const cellText = ({ row, column }: Cell): string => {
    const line = weights[row]!;
    const read = column >= 0 ? column : line.indexOf(Math.max(...line));
    const weight = figure(line[read]!);
    return fill(words.translate.cell, { target: numbered(target, row), source: numbered(source, read), weight });
  };
  return (
    <section class="card">
      <h2>{words.translate.matrix}</h2>
      <p class="hint told" aria-live="polite">
        {cell && weights[cell.row] ? cellText(cell) : "\u00a0"}
      </p>
      <AlignmentMatrix
        key={`${hypothesis.text} ${hypothesis.score}`}
        label={words.translate.matrixLabel}
        rows={target}
        columns={source}
        weights={weights}
        theme={theme}
        scale={scale}
        point={setCell}
      />
      <Legend app={app} low={lowest(strongest, scale)} high={strongest} colours={gradient(theme)} />
    </section>
  );
}
