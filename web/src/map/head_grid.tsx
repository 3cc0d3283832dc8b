// All layers and heads as thumbnails: a table whose rows are maps and whose columns are heads.

import { Fragment } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

import { ask, paths } from "../api/client.ts";
import { each } from "../api/pending_requests.ts";
import type { Recording } from "../api/recorded_answers.ts";
import type { MapInfo } from "../api/types.ts";
import { ReduceChoice, ScaleChoice } from "../shared/controls.tsx";
import { ARROWS, clamp } from "../shared/format.ts";
import { paintShades, readPgm } from "../shared/shades.ts";
import { type WorkLabel, fill } from "../shared/translations.ts";
import { type Store, pictureOptions } from "../shell/store.ts";
import { MapLegend } from "./map_view.tsx";

const AT_ONCE = 3; // requests: the browser keeps a few connections free for what is clicked meanwhile

export function HeadGrid({ app }: { app: Store }) {
  const { target } = app;
  const table = useRef<HTMLTableElement>(null);
  const most = Math.max(...target.maps.map((map) => map.heads), 0);
  const options = pictureOptions(app);
  useLayoutEffect(() => {
    const control = new AbortController();
    void loadThumbnails(app, table.current!, options, control);
    return () => control.abort();
  }, [options, app.theme]);
  return (
    <section class="grid">
      <Heading app={app} />
      <div class="sheet" tabIndex={-1}>
        <table ref={table}>
          <thead>
            <tr>
              <td />
              {Array.from({ length: most }, (_, head) => (
                <th key={head} scope="col">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {target.maps.map((map) => (
              <Row key={map.id} app={app} map={map} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Heading({ app }: { app: Store }) {
  const { grid: words } = app.words;
  const { maps } = app.target;
  const recording = app.recorded?.recording;
  const heads = maps.reduce((sum, map) => sum + map.heads, 0);
  return (
    <header class="heading">
      <div>
        <h1>{words.title}</h1>
        <p class="lead">{maps.length ? fill(words.lead, { maps: maps.length, heads }) : words.none}</p>
        {recording && <p class="lead">{savedText(app, recording)}</p>}
      </div>
      <div class="tools">
        <ReduceChoice app={app} />
        <ScaleChoice app={app} />
        {maps.length > 0 && <MapLegend app={app} floor={Math.max(...maps.map((map) => map.floor))} />}
      </div>
    </header>
  );
}

/** The contents of a saved page. */
function savedText({ words: { grid: words } }: Store, { heads, all, limit, reduced }: Recording): string {
  const text = fill(words.saved, { full: Object.keys(heads).filter((at) => !at.endsWith("mean")).length, all });
  return `${text} ${fill(reduced ? words.savedReduced : words.savedLimit, { limit: Math.round(limit / 2 ** 20) })}`;
}

function Row({ app, map }: { app: Store; map: MapInfo }) {
  const { grid } = app.words;
  return (
    <tr>
      <th scope="row">
        <b title={map.name}>
          {map.name.split(/(?<=[._/])/).map((part, index) => (
            <Fragment key={index}>
              {part}
              <wbr />
            </Fragment>
          ))}
        </b>
        <span>
          {grid.kinds[map.kind]} · <span class="size">{`${app.count(map.queries)} × ${app.count(map.keys)}`}</span>
        </span>
      </th>
      {Array.from({ length: map.heads }, (_, head) => (
        <td key={head}>
          <Thumbnail app={app} map={map} head={head} />
        </td>
      ))}
    </tr>
  );
}

function Thumbnail({ app, map, head }: { app: Store; map: MapInfo; head: number }) {
  const label = fill(app.words.grid.open, { name: map.name, head });
  const open = (event: MouseEvent): void => {
    event.preventDefault();
    app.go({ map: map.id, head, sight: null, token: null, end: null });
    // with the keyboard, the focus was on the link, which is gone
    if (!event.detail) document.querySelector<HTMLElement>(".stage")?.focus({ preventScroll: true });
  };
  const canvas = <canvas class="thumbnail" style={{ aspectRatio: String(clamp(map.keys / map.queries, 0.25, 4)) }} />;
  if (!app.opens(map.id, head))
    return <span title={fill(app.words.grid.small, { name: map.name, head })}>{canvas}</span>;
  return (
    <a href={`#map?map=${map.id}&head=${head}`} title={label} aria-label={label} onClick={open} onKeyDown={move}>
      {canvas}
    </a>
  );
}

/** Move the focus to a neighbour with the arrow keys. */
function move(event: KeyboardEvent): void {
  const by = ARROWS[event.key];
  if (!by) return;
  event.preventDefault();
  const cell = (event.currentTarget as HTMLElement).closest("td")!;
  const rows = [...cell.closest("tbody")!.rows];
  const row = rows[rows.indexOf(cell.parentElement as HTMLTableRowElement) + by[0]];
  const target = row?.cells[clamp(cell.cellIndex + by[1], 1, row.cells.length - 1)];
  target?.querySelector("a")?.focus();
}

/** Request the thumbnails, those in sight first, and paint them. */
async function loadThumbnails(
  app: Store,
  table: HTMLTableElement,
  options: string,
  control: AbortController,
): Promise<void> {
  const canvases = [...table.querySelectorAll("canvas")];
  const wanted = app.target.maps
    .flatMap((map) => Array.from({ length: map.heads }, (_, head) => ({ map, head })))
    .map((one, index) => ({ ...one, canvas: canvases[index]! }));
  let done = 0;
  const label: WorkLabel = ({ work }) => fill(work.overviews, { done, all: wanted.length });
  const task = async (signal: AbortSignal): Promise<void> => {
    await new Promise(requestAnimationFrame); // the canvases have no layout before
    const ranks = new Map(wanted.map((one) => [one, inSight(one.canvas) ? 0 : 1]));
    wanted.sort((a, b) => ranks.get(a)! - ranks.get(b)!);
    await each(wanted, AT_ONCE, signal, async ({ map, head, canvas }) => {
      const response = await ask(paths.overview(map.id, head, options), signal);
      const shades = readPgm(await response.arrayBuffer());
      signal.throwIfAborted();
      paintShades(canvas, shades, app.theme);
      canvas.classList.add("there");
      done += 1;
    });
  };
  await app.request(label, task, control);
}

function inSight(element: Element): boolean {
  const box = element.getBoundingClientRect();
  return box.top < window.innerHeight && box.left < window.innerWidth;
}
