// The Text view: the tokens, coloured by what the selected one attends to or receives, and the links of a span.

import { useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import type { KeyAnswer, MapInfo, QueryAnswer, ReceivedAnswer } from "../api/types.ts";
import { useAnswer, useAnswers } from "../api/use_answer.ts";
import { Choice, HeadChoice, ScaleChoice, WeightList, stepHead } from "../shared/controls.tsx";
import { figure } from "../shared/format.ts";
import { fill } from "../shared/translations.ts";
import { AnotherText } from "../shell/dialogs.tsx";
import { type Store, mapOf, tokensOf, useHandlers } from "../shell/store.ts";
import type { State } from "../shell/url_state.ts";
import { LinkCurves } from "./link_curves.tsx";
import type { Link } from "./links.ts";
import { show } from "./token_spelling.ts";
import { TokenText, type Weights, shadesOf } from "./token_text.tsx";

const STRONGEST = 20;
const LINKS_EACH = 5;
const MOST_FROM = 16;
const NO_MARKS: ReadonlySet<number> = new Set();

type Answer = QueryAnswer | KeyAnswer;

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
            <p class="hint">{words.text.noTokens}</p>
          </div>
          <aside class="panel" />
        </div>
      )}
    </section>
  );
}

function Toolbar({ app }: { app: Store }) {
  const { words, state } = app;
  const [asking, setAsking] = useState(false);
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
      {app.target.can.includes("run") && (
        <button type="button" class="plain" onClick={() => setAsking(true)}>
          {words.text.another}
        </button>
      )}
      {asking && <AnotherText app={app} close={() => setAsking(false)} />}
    </div>
  );
}

function pathOf(map: MapInfo, { head, direction }: State, token: number, top: number): string {
  return direction === "from" ? paths.query(map.id, head, token, top) : paths.key(map.id, head, token, top);
}

function weightsOf(answer: Answer): Weights {
  if ("keys" in answer) return { positions: answer.keys, weights: answer.weights, all: answer.row };
  return { positions: answer.queries, weights: answer.weights, all: answer.column };
}

/** The mean weight that each key receives, for each of `size` keys. */
function receivedOf(size: number, { received, cells_per_entry: cells = 1 }: ReceivedAnswer): Weights {
  const all = Array.from({ length: size }, (_, position) => received[Math.floor(position / cells)] ?? 0);
  return { positions: [], weights: [received.reduce((most, weight) => Math.max(most, weight), 1e-12)], all };
}

/** A token, the direction of the request, and the response. */
type Listed = { token: number; direction: State["direction"]; answer: Weights };

/** The weights of the selected token. The previous response is kept until the new one arrives. */
function useChosen(app: Store, map: MapInfo): Listed | null {
  const { words, state } = app;
  const { direction } = state;
  const token = state.end ?? state.token;
  const label = fill(direction === "from" ? words.work.query : words.work.key, { position: token ?? 0 });
  const answer = useAnswer<Answer>(app, token === null ? null : pathOf(map, state, token, STRONGEST), label);
  const listed = useMemo(
    () => (token === null || !answer ? null : { token, direction, answer: weightsOf(answer) }),
    [answer, token, direction],
  );
  const last = useRef<Listed | null>(null);
  if (token === null) last.current = null;
  else if (listed) last.current = listed;
  return last.current;
}

type Names = { query: string[]; key: string[] };

/** The texts, and the weights of the selected token beside them. */
function Reading({ app, map, names }: { app: Store; map: MapInfo; names: Names }) {
  const { token, end, direction } = app.state;
  const chosen = useChosen(app, map);
  const keys = useRef<TokenText>(null);
  const one = map.kind !== "cross" && map.query_tokens === map.key_tokens;
  const choose = (next: number, lengthen: boolean, towards: State["direction"]): void => {
    const { state } = app;
    if (lengthen && state.token !== null && towards === state.direction) app.go({ end: next }, true);
    else app.go({ token: next, end: null, direction: towards }, state.token !== null);
  };
  const chooseOther = (next: number): void =>
    choose(next, false, one ? direction : direction === "from" ? "to" : "from");
  return (
    <div class="desk">
      <Texts app={app} map={map} names={names} one={one} chosen={chosen} choose={choose} keys={keys} />
      <aside class="panel">
        {token !== null && end !== null && end !== token && chosen && (
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
  choose: (token: number, lengthen: boolean, towards: State["direction"]) => void;
  keys: { current: TokenText | null };
}

/** The texts of queries and keys; one text if a sequence attends to itself. */
function Texts({ app, map, names, one, chosen, choose, keys }: TextsProps) {
  const { words, state } = app;
  const { token, end, direction, scale } = state;
  const overall = token === null ? paths.received(map.id, state.head) : null;
  const received = useAnswer<ReceivedAnswer>(app, overall, words.work.received);
  // A token attends to keys and receives from queries; without a chosen token, keys are coloured by what they receive
  const coloured = chosen?.direction === "to" ? "query" : "key";
  const shades = useMemo(() => {
    const weights = chosen?.answer ?? (received && receivedOf(map.keys, received));
    return weights && shadesOf(names[coloured].length, weights, scale);
  }, [chosen, received, coloured, scale]);
  const span: [number, number] | null = token === null ? null : [token, end ?? token];
  const text = (side: "query" | "key", label: string, towards: State["direction"]) => (
    <section class="reading" key={label}>
      {!one && <h2>{label}</h2>}
      <TokenText
        handle={side === "key" ? keys : null}
        tokens={names[side]}
        label={label}
        shades={one || side === coloured ? shades : null}
        marks={NO_MARKS}
        span={one || direction === towards ? span : null}
        choose={(next, lengthen) => choose(next, lengthen, one ? app.state.direction : towards)}
        clear={() => app.go({ token: null, end: null })}
      />
    </section>
  );
  const two = [text("key", words.text.keys, "to"), text("query", words.text.queries, "from")];
  return <div class="texts">{one ? text("key", words.text.both, "from") : two}</div>;
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

/** The names on the side of the chosen token, and on the other side. */
function sides(names: Names, direction: State["direction"]): { from: string[]; to: string[] } {
  return direction === "from" ? { from: names.query, to: names.key } : { from: names.key, to: names.query };
}

type ChosenProps = { app: Store; listed: Listed; names: Names; choose: (token: number) => void };

function Chosen({ app, listed: { token, direction, answer }, names, choose }: ChosenProps) {
  const { words } = app;
  const { from, to } = sides(names, direction);
  const items = answer.positions.map((position, rank) => {
    const weight = answer.weights[rank]!;
    const name = `“${show(to[position] ?? "")}”`;
    return { name, weight, shown: figure(weight), choose: () => choose(position) };
  });
  return (
    <section class="card">
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
  const asked = tokens.map((token) => pathOf(map, state, token, LINKS_EACH));
  const answers = useAnswers<Answer>(app, asked, 3, words.work.links);
  if (answers.some((one) => one === undefined)) return null;
  const links: Link[] = answers.flatMap((one, index) => {
    const { positions, weights } = weightsOf(one!);
    return positions.map((to, rank) => ({ from: tokens[index]!, to, weight: weights[rank]! }));
  });
  if (!links.length) return null;
  return (
    <section class="card linked">
      <h2>{words.text.links}</h2>
      <p class="hint">
        {all > MOST_FROM ? fill(words.text.linksCut, { shown: MOST_FROM, all }) : words.text.linksHint}
      </p>
      <LinkCurves links={links} names={sides(names, state.direction)} label={words.text.links} choose={reveal} />
    </section>
  );
}
