// The Map view: one head, from the whole matrix to single cells, with the weight of a cell, the strongest keys and the
// text.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import type { CellAnswer, QueryAnswer } from "../api/types.ts";
import { useAnswer } from "../api/use_answer.ts";
import { Debounced } from "../shared/canvas.ts";
import { Facts, HeadChoice, IconButton, ReduceChoice, ScaleChoice, WeightList, stepHead } from "../shared/controls.tsx";
import { figure } from "../shared/format.ts";
import { Legend, gradient } from "../shared/legend.tsx";
import { Readout } from "../shared/readout.tsx";
import { fill } from "../shared/translations.ts";
import { type Store, headName, mapOf, tokensOf, useHandlers } from "../shell/store.ts";
import { named, positionIfRepeated } from "../text/token_spelling.ts";
import { TokenText, shadesOf } from "../text/token_text.tsx";
import { HeadProfile } from "./head_profile.tsx";
import { type TileElements, type TileEvents, TileViewer } from "./tile_viewer.ts";
import type { Cell } from "./zoom_levels.ts";

const STRONGEST = 20;
const PAUSE = 70; // milliseconds on a cell until its weight is requested

/** Passes the hovered cell to the card that shows it. */
type Pointer = { listener: (cell: Cell | null) => void };

export function MapView({ app }: { app: Store }) {
  const { state } = app;
  const map = mapOf(app);
  const viewer = useRef<TileViewer | null>(null);
  const pointer = useMemo((): Pointer => ({ listener: () => undefined }), []);
  const query = state.direction === "from" ? state.token : null;
  const path = query === null ? null : paths.query(map.id, state.head, query, STRONGEST);
  const row = useAnswer<QueryAnswer>(app, path, ({ work }) => fill(work.query, { position: query ?? 0 }));
  const choose = (chosen: number): void => {
    const again = app.state.token === chosen && app.state.direction === "from";
    app.go({ token: again ? null : chosen, end: null, direction: "from" });
  };
  const clear = (): void => app.go({ token: null, end: null });
  const marks = row?.keys ?? NONE;
  useLayoutEffect(() => viewer.current?.mark(marks), [marks]);
  const key = (event: KeyboardEvent): boolean => pressed(app, viewer.current!, event);
  useHandlers(app, [app], { key, note: () => viewer.current?.note() });
  return (
    <section class="look">
      <Toolbar app={app} zoom={(by) => viewer.current!.zoom(by)} whole={() => viewer.current!.whole()} />
      <div class="desk">
        <TileArea app={app} viewer={viewer} events={{ point: (cell) => pointer.listener(cell), choose }} />
        <aside class="panel">
          <Here app={app} pointer={pointer} />
          <Strongest app={app} query={query} row={row} show={(cell) => viewer.current!.show(cell)} clear={clear} />
          <Reading app={app} query={query} row={row} choose={choose} clear={clear} />
          {state.head !== "mean" && <HeadProfile app={app} head={state.head} />}
        </aside>
      </div>
    </section>
  );
}

const NONE: readonly number[] = [];

function pressed(app: Store, viewer: TileViewer, event: KeyboardEvent): boolean {
  if (event.key === "Escape" && app.state.token !== null) {
    app.go({ token: null, end: null });
    return true;
  }
  return viewer.zoomKey(event.key) || stepHead(app, event.key);
}

function Toolbar({ app, zoom, whole }: { app: Store; zoom: (by: number) => void; whole: () => void }) {
  const { words } = app;
  const back = (): void => app.go({ map: null, token: null, end: null, sight: null });
  return (
    <div class="toolbar">
      <button type="button" class="plain back" onClick={back}>
        ← {words.map.back}
      </button>
      <HeadChoice app={app} />
      <ReduceChoice app={app} />
      <ScaleChoice app={app} />
      <MapLegend app={app} floor={mapOf(app).floor} />
      <div class="icons">
        <IconButton label={words.map.zoomIn} sign="+" action={() => zoom(2)} />
        <IconButton label={words.map.zoomOut} sign="−" action={() => zoom(0.5)} />
        <IconButton label={words.map.whole} sign="⤢" action={whole} />
      </div>
    </div>
  );
}

export function MapLegend({ app, floor }: { app: Store; floor: number }) {
  return <Legend app={app} low={app.state.scale === "log" ? floor : 0} high={1} colours={gradient(app.theme)} />;
}

/** The elements of the tile viewer. They stay when another head is shown, and so does the focus. */
function TileArea({ app, viewer, events }: { app: Store; viewer: { current: TileViewer | null }; events: TileEvents }) {
  const { words, state } = app;
  const elements = useRef<Partial<TileElements>>({});
  const keep = (name: keyof TileElements) => (element: HTMLElement | null) =>
    void Object.assign(elements.current, { [name]: element });
  useLayoutEffect(() => {
    const tileViewer = (viewer.current = new TileViewer(app, elements.current as TileElements, events));
    return () => tileViewer.close();
  }, [app]);
  useLayoutEffect(() => viewer.current!.update());
  const point = (event: PointerEvent): void => {
    const box = elements.current.container!.getBoundingClientRect();
    viewer.current!.point(viewer.current!.at(event.clientX - box.left, event.clientY - box.top));
  };
  return (
    <div class="zoom">
      <div class="corner" aria-hidden="true">
        <span>{words.map.keys}</span>
        <span>{words.map.queries}</span>
      </div>
      <canvas class="across" aria-hidden="true" ref={keep("across")} />
      <canvas class="down" aria-hidden="true" ref={keep("down")} />
      <div
        class="stage"
        tabIndex={0}
        role="application"
        aria-label={fill(words.map.label, { name: mapOf(app).name, head: headName(app, state.head) })}
        aria-describedby="here"
        ref={keep("container")}
        onPointerDown={point}
        onPointerMove={point}
        onPointerLeave={(event) => event.pointerType !== "touch" && viewer.current!.point(null)}
        onKeyDown={(event) => viewer.current!.pressed(event) && event.preventDefault()}>
        <div class="tiles" ref={keep("tiles")} />
        <canvas class="over" aria-hidden="true" ref={keep("over")} />
      </div>
    </div>
  );
}

/** The hovered cell, and whether the mouse has rested on it. */
function useCell(pointer: Pointer): { cell: Cell | null; rested: boolean } {
  const [cell, setCell] = useState<Cell | null>(null);
  const [rested, setRested] = useState<Cell | null>(null);
  const debounced = useMemo(() => new Debounced(PAUSE, setRested), []);
  useLayoutEffect(() => {
    pointer.listener = (next) => {
      setCell(next);
      if (next) debounced.call(next);
      else debounced.cancel();
    };
    return () => debounced.cancel();
  }, [pointer]);
  return { cell, rested: cell === rested };
}

/** The hovered cell. Its weight is requested once the mouse rests on it. */
function Here({ app, pointer }: { app: Store; pointer: Pointer }) {
  const { map: words } = app.words;
  const map = mapOf(app);
  const { cell, rested } = useCell(pointer);
  const path = cell && rested ? paths.cell(map.id, app.state.head, cell.query, cell.key) : null;
  const answer = useAnswer<CellAnswer>(app, path, ({ work }) => work.cell);
  const [queries, keys] = [tokensOf(app, map, "query"), tokensOf(app, map, "key")];
  const entry = (tokens: string[] | null, position: number) => (
    <>
      {named(tokens, position)}
      {tokens && <small> {position}</small>}
    </>
  );
  const reading = ({ key }: Cell, { weight }: CellAnswer) => {
    return { name: named(keys, key), position: positionIfRepeated(keys, key), weight: weight ?? 0 };
  };
  const lines = (at: Cell): [string, ComponentChildren][] => [
    [words.query, entry(queries, at.query)],
    [words.key, entry(keys, at.key)],
    [words.weight, answer ? figure(answer.weight) : "…"],
    [words.rank, answer ? fill(words.rankOf, { rank: answer.rank ?? "–", all: app.count(map.keys) }) : "…"],
  ];
  return (
    <section class="card">
      {cell && answer && <Readout name={named(queries, cell.query)} readings={[reading(cell, answer)]} />}
      <h2>{words.here}</h2>
      <div class="here" id="here" aria-live="polite">
        {cell ? <Facts lines={lines(cell)} /> : <p class="hint">{words.hover}</p>}
      </div>
    </section>
  );
}

interface StrongestProps {
  app: Store;
  query: number | null;
  row: QueryAnswer | null;
  show: (cell: Cell) => void;
  clear: () => void;
}

/** The strongest keys of the selected query. The previous list is kept until the new one arrives. */
function Strongest({ app, query, row, show, clear }: StrongestProps) {
  const { words } = app;
  const map = mapOf(app);
  const last = useRef<{ query: number; row: QueryAnswer } | null>(null);
  if (query === null) last.current = null;
  else if (row) last.current = { query, row };
  const listed = last.current;
  if (!listed) {
    return (
      <section class="card">
        <h2>{fill(words.map.strongest, { token: "…" })}</h2>
        <p class="hint">{words.map.choose}</p>
      </section>
    );
  }
  const [keys, queries] = [tokensOf(app, map, "key"), tokensOf(app, map, "query")];
  const repeated = positionIfRepeated(queries, listed.query);
  const token = `${named(queries, listed.query)}${repeated === null ? "" : ` ${repeated}`}`;
  const items = listed.row.keys.map((key, rank) => {
    const weight = listed.row.weights[rank]!;
    const position = positionIfRepeated(keys, key);
    const choose = (): void => show({ query: listed.query, key });
    return { name: named(keys, key), position, weight, shown: figure(weight), choose };
  });
  return (
    <section class="card">
      <header class="between">
        <h2>{fill(words.map.strongest, { token })}</h2>
        <button type="button" class="plain" onClick={clear}>
          {words.map.unchoose}
        </button>
      </header>
      <WeightList items={items} strongest={listed.row.weights[0] ?? 0} />
    </section>
  );
}

interface ReadingProps {
  app: Store;
  query: number | null;
  row: QueryAnswer | null;
  choose: (query: number) => void;
  clear: () => void;
}

/** The text of the keys, coloured by the weights of the selected query. */
function Reading({ app, query, row, choose, clear }: ReadingProps) {
  const { words, state } = app;
  const map = mapOf(app);
  const tokens = tokensOf(app, map, "key");
  const text = useRef<TokenText>(null);
  const shades = useMemo(
    () => row && shadesOf(map.keys, { positions: row.keys, weights: row.weights, all: row.row }, state.scale),
    [row, map.keys, state.scale],
  );
  const marks = useMemo(() => new Set(row?.keys), [row]);
  useLayoutEffect(() => {
    if (row?.keys[0] !== undefined) text.current?.reveal(row.keys[0], true); // the map stays where it is
  }, [row]);
  if (!tokens) return null;
  return (
    <section class="card reading">
      <h2>{words.map.text}</h2>
      <TokenText
        handle={text}
        tokens={tokens}
        label={words.map.text}
        space={words.text.space}
        shades={shades}
        marks={marks}
        span={query !== null && map.query_tokens === map.key_tokens ? [query, query] : null}
        choose={(token) => choose(Math.min(token, map.queries - 1))}
        clear={clear}
      />
    </section>
  );
}
