// The Text view: the tokens, coloured by what the selected one attends to or receives, and the links of a span.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import type { MapInfo, ReceivedAnswer } from "../api/types.ts";
import { useAnswer, useAnswers } from "../api/use_answer.ts";
import { Choice, HeadChoice, ScaleChoice, WeightList, stepHead } from "../shared/controls.tsx";
import { Debounced } from "../shared/canvas.ts";
import { figure } from "../shared/format.ts";
import { Legend, lowest } from "../shared/legend.tsx";
import { Readout } from "../shared/readout.tsx";
import { type WorkLabel, fill } from "../shared/translations.ts";
import { AnotherText } from "../shell/dialogs.tsx";
import { type Store, mapOf, tokensOf, useHandlers } from "../shell/store.ts";
import { AllHeads } from "./all_heads.tsx";
import { type Answer, type Direction, type Names, pathOf, receivedOf, sides, weightsOf } from "./answers.ts";
import { LinkCurves } from "./link_curves.tsx";
import type { Link } from "./links.ts";
import { positionIfRepeated, show } from "./token_spelling.ts";
import { TokenText, type Weights, shadesOf } from "./token_text.tsx";

const STRONGEST = 20;
const LINKS_EACH = 5;
const MOST_FROM = 16;
const PAUSE = 60; // milliseconds on a token until its links are requested
const NO_MARKS: ReadonlySet<number> = new Set();

export function TextView({ app }: { app: Store }) {
  const { words } = app;
  const map = mapOf(app);
  const [query, key] = [tokensOf(app, map, "query"), tokensOf(app, map, "key")];
  useHandlers(app, [app], { key: (event) => stepHead(app, event.key) });
  return (
    <section class="look text">
      <Toolbar app={app} />
      {query && key ? (
        <Reading app={app} map={map} names={{ query, key }} />
      ) : (
        <div class="desk">
          <div class="texts">
            <div class="between above">
              <p class="hint">{words.text.noTokens}</p>
              <Another app={app} />
            </div>
          </div>
          <aside class="panel" />
        </div>
      )}
    </section>
  );
}

function Toolbar({ app }: { app: Store }) {
  const { words, state } = app;
  return (
    <div class="toolbar">
      <HeadChoice app={app} />
      <Choice
        label={words.text.direction}
        names={words.text.directions}
        value={state.direction}
        choose={(direction) => app.go({ direction })}
      />
      <ScaleChoice app={app} />
      {linksAll(app) && (
        <Choice
          label={words.text.links}
          names={words.text.linkedHeads}
          value={state.links}
          choose={(links) => app.go({ links })}
        />
      )}
    </div>
  );
}

/** Whether the links of all heads of the layer can be shown. */
function linksAll(app: Store): boolean {
  const { id, heads } = mapOf(app);
  return heads > 1 && Array.from({ length: heads }, (_, head) => head).every((head) => app.opens(id, head));
}

/** Runs the model on another text, if it can run. */
function Another({ app }: { app: Store }) {
  const [asking, setAsking] = useState(false);
  if (!app.target.can.includes("run")) return null;
  return (
    <>
      <button type="button" class="plain" onClick={() => setAsking(true)}>
        {app.words.text.another}
      </button>
      {asking && <AnotherText app={app} close={() => setAsking(false)} />}
    </>
  );
}

type Pointed = { token: number; direction: Direction };
/** A token, the direction of the request, and the response. */
type Listed = Pointed & { answer: Weights };

/** The token under the mouse, once it rests there. */
function usePointed(): [Pointed | null, (token: number | null, direction: Direction) => void] {
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const debounced = useMemo(() => new Debounced(PAUSE, setPointed), []);
  useLayoutEffect(() => () => debounced.cancel(), []);
  return [pointed, (token, direction) => debounced.call(token === null ? null : { token, direction })];
}

/** The weights of the selected token. The previous response is kept until the new one arrives. */
function useChosen(app: Store, map: MapInfo): Listed | null {
  const { state } = app;
  const { direction } = state;
  const token = state.end ?? state.token;
  const label: WorkLabel = ({ work }) => fill(direction === "from" ? work.query : work.key, { position: token ?? 0 });
  const answer = useAnswer<Answer>(
    app,
    token === null ? null : pathOf(map, state.head, direction, token, STRONGEST),
    label,
  );
  const listed = useMemo(
    () => (token === null || !answer ? null : { token, direction, answer: weightsOf(answer) }),
    [answer, token, direction],
  );
  const last = useRef<Listed | null>(null);
  if (token === null) last.current = null;
  else if (listed) last.current = listed;
  return last.current;
}

/** The texts, and the weights of the selected token beside them. */
function Reading({ app, map, names }: { app: Store; map: MapInfo; names: Names }) {
  const { token, end, direction } = app.state;
  const chosen = useChosen(app, map);
  const [pointed, point] = usePointed();
  const keys = useRef<TokenText>(null);
  const all = app.state.links === "all" && linksAll(app);
  const one = map.kind !== "cross" && map.query_tokens === map.key_tokens;
  const spans = !all && token !== null && end !== null && end !== token && chosen !== null;
  const desk = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const card = desk.current!.querySelector(".linked");
    if (!card || getComputedStyle(card).position !== "fixed") return;
    // on a small screen the links cover its lower part
    desk.current!.querySelector(".tokens .chosen")?.scrollIntoView({ block: "nearest" });
  }, [all, spans]);
  const choose = (next: number, lengthen: boolean, towards: Direction): void => {
    const { state } = app;
    if (lengthen && state.token !== null && towards === state.direction) app.go({ end: next }, true);
    else app.go({ token: next, end: null, direction: towards }, state.token !== null);
  };
  const chooseOther = (next: number): void =>
    choose(next, false, one ? direction : direction === "from" ? "to" : "from");
  return (
    <div class="desk" ref={desk}>
      <Texts app={app} map={map} names={names} one={one} chosen={chosen} choose={choose} keys={keys} point={point} />
      <aside class="panel">
        {all && <AllHeads app={app} map={map} names={names} at={pointed ?? chosen} />}
        {spans && (
          <SpanLinks app={app} map={map} span={[token, end]} names={names} reveal={(to) => keys.current?.reveal(to)} />
        )}
        {token === null && <Hints app={app} />}
        {chosen && <Chosen app={app} listed={chosen} names={names} choose={chooseOther} />}
      </aside>
    </div>
  );
}

interface TextsProps {
  app: Store;
  map: MapInfo;
  names: Names;
  /** Whether queries and keys are one text. */
  one: boolean;
  chosen: Listed | null;
  choose: (token: number, lengthen: boolean, towards: Direction) => void;
  keys: { current: TokenText | null };
  point: (token: number | null, towards: Direction) => void;
}

/** The texts of queries and keys; one text if a sequence attends to itself. */
function Texts({ app, map, names, one, chosen, choose, keys, point }: TextsProps) {
  const { words, state } = app;
  const { token, end, direction, scale } = state;
  const overall = token === null ? paths.received(map.id, state.head) : null;
  const received = useAnswer<ReceivedAnswer>(app, overall, ({ work }) => work.received);
  // A token attends to keys and receives from queries; without a chosen token, keys are coloured by what they receive
  const coloured = chosen?.direction === "to" ? "query" : "key";
  const weights = useMemo(
    () => chosen?.answer ?? (received && receivedOf(map.keys, received)),
    [chosen, received, map.keys],
  );
  const shades = useMemo(() => weights && shadesOf(names[coloured].length, weights, scale), [weights, coloured, scale]);
  const span: [number, number] | null = token === null ? null : [token, end ?? token];
  const text = (side: "query" | "key", label: string, towards: Direction) => (
    <section class="reading" key={label}>
      {!one && <h2>{label}</h2>}
      <TokenText
        handle={side === "key" ? keys : null}
        tokens={names[side]}
        label={label}
        space={words.text.space}
        shades={one || side === coloured ? shades : null}
        marks={NO_MARKS}
        span={one || direction === towards ? span : null}
        choose={(next, lengthen) => choose(next, lengthen, one ? app.state.direction : towards)}
        clear={() => app.go({ token: null, end: null })}
        point={(next) => point(next, one ? app.state.direction : towards)}
      />
    </section>
  );
  return (
    <div class="texts">
      <Above app={app} high={Math.max(...(weights?.weights ?? []), 0)} />
      {text("key", one ? words.text.both : words.text.keys, one ? "from" : "to")}
      {!one && text("query", words.text.queries, "from")}
    </div>
  );
}

/** The legend, for weights up to `high`. */
function Above({ app, high }: { app: Store; high: number }) {
  return (
    <div class="between above">
      <Legend app={app} low={lowest(high, app.state.scale)} high={high} />
      <Another app={app} />
    </div>
  );
}

function Hints({ app }: { app: Store }) {
  const { text } = app.words;
  return (
    <section class="card">
      <p class="hint">{text.received}</p>
      <p class="hint">{text.hint}</p>
    </section>
  );
}

type ChosenProps = { app: Store; listed: Listed; names: Names; choose: (token: number) => void };

function Chosen({ app, listed: { token, direction, answer }, names, choose }: ChosenProps) {
  const { words } = app;
  const { from, to } = sides(names, direction);
  const items = answer.positions.map((position, rank) => {
    const weight = answer.weights[rank]!;
    const name = `“${show(to[position] ?? "")}”`;
    const repeated = positionIfRepeated(to, position);
    return { name, position: repeated, weight, shown: figure(weight), choose: () => choose(position) };
  });
  return (
    <section class="card">
      <Readout name={`“${show(from[token] ?? "")}”`} readings={items} />
      <h2>{fill(words.text.chosen, { token: show(from[token] ?? ""), position: token })}</h2>
      <p class="hint">{words.text.directions[direction]}</p>
      <WeightList items={items} strongest={Math.max(...answer.weights, 1e-12)} />
    </section>
  );
}

type SpanLinksProps = { app: Store; map: MapInfo; span: [number, number]; names: Names; reveal: (to: number) => void };

/** The strongest links of each token of a span. */
function SpanLinks({ app, map, span, names, reveal }: SpanLinksProps) {
  const { words, state } = app;
  const [first, last] = [Math.min(...span), Math.max(...span)];
  const all = last - first + 1;
  const tokens = Array.from({ length: Math.min(all, MOST_FROM) }, (_, index) => first + index);
  const asked = tokens.map((token) => pathOf(map, state.head, state.direction, token, LINKS_EACH));
  const answers = useAnswers<Answer>(app, asked, 3, ({ work }) => work.links);
  if (answers.some((one) => one === undefined)) return null;
  const links: Link[] = answers.flatMap((one, index) => {
    const { positions, weights } = weightsOf(one!);
    return positions.map((to, rank) => ({ from: tokens[index]!, to, weight: weights[rank]! }));
  });
  if (!links.length) return null;
  return (
    <section class="card linked" tabIndex={0} aria-label={words.text.spanLinks}>
      <h2>{words.text.spanLinks}</h2>
      <p class="hint">
        {all > MOST_FROM ? fill(words.text.linksCut, { shown: MOST_FROM, all }) : words.text.linksHint}
      </p>
      <LinkCurves links={links} names={sides(names, state.direction)} label={words.text.spanLinks} choose={reveal} />
    </section>
  );
}
