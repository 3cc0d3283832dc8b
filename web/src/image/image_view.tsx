// The view Image: the picture of a vision model in patches, with an overlay of the class token, a patch, or rollout.

import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import { pictureAddress } from "../api/transport.ts";
import { decoded } from "../api/pending_requests.ts";
import type { OverlayAnswer, Picture } from "../api/types.ts";
import { useAnswer, useAnswers } from "../api/use_answer.ts";
import { Choice, HeadChoice, ScaleChoice, stepHead } from "../shared/controls.tsx";
import { beside, clamp, figure } from "../shared/format.ts";
import { type Scale, ramp, shade } from "../shared/palette.ts";
import { Legend, gradient, lowest } from "../shared/legend.tsx";
import { fill } from "../shared/translations.ts";
import { type Store, mapOf, useHandlers } from "../shell/store.ts";
import type { State } from "../shell/url_state.ts";

export function ImageView({ app }: { app: Store }) {
  const [strength, setStrength] = useState(100);
  useHandlers(app, [app], { key: (event) => stepHead(app, event.key) });
  return (
    <section class="look image">
      <Toolbar app={app} strength={strength} setStrength={setStrength} />
      <div class="desk">
        <Framed app={app} opacity={strength / 100} />
        <aside class="panel">
          <section class="card">
            <h2>{app.words.image.heads}</h2>
            <Heads app={app} />
          </section>
        </aside>
      </div>
    </section>
  );
}

type ToolbarProps = { app: Store; strength: number; setStrength: (strength: number) => void };

function Toolbar({ app, strength, setStrength }: ToolbarProps) {
  const { image: words } = app.words;
  const { overlay } = app.state;
  const lacking: State["overlay"][] = app.target.image!.first > 0 ? [] : ["class"];
  const change = (event: Event): void => setStrength(Number((event.currentTarget as HTMLInputElement).value));
  const choose = (next: State["overlay"]): void => app.go({ overlay: next });
  return (
    <div class="toolbar">
      <div class="choosers">
        <HeadChoice app={app} />
        <Choice label={words.overlay} names={words.overlays} value={overlay} choose={choose} disabled={lacking} />
      </div>
      <ScaleChoice app={app} />
      <label class="field">
        <span>{words.strength}</span>
        <input type="range" min="0" max="100" value={strength} onInput={change} />
      </label>
    </div>
  );
}

/** The token whose overlay is shown: the class token, or that of the chosen patch. */
function tokenOf({ state: { overlay, patch }, target }: Store): number {
  const { first } = target.image!;
  const own = overlay === "class" ? first > 0 : patch === null;
  return own ? 0 : first + (patch ?? 0);
}

function patchAt(event: MouseEvent, { rows, columns }: Picture): number {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const column = clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1);
  const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
  return row * columns + column;
}

/** The patch that an arrow key leads to; null for other keys. */
function patchBeside(event: KeyboardEvent, { rows, columns }: Picture, patch: number | null): number | null {
  const from = patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const next = beside(event.key, { row: Math.floor(from / columns), column: from % columns }, rows, columns);
  return next && next.row * columns + next.column;
}

/** The image, its overlay, and the hovered patch. */
function Framed({ app, opacity }: { app: Store; opacity: number }) {
  const { words, state, target } = app;
  const [picture, rolled] = [target.image!, state.overlay === "rollout"];
  const path = rolled ? paths.rolledOverlay(tokenOf(app)) : paths.overlay(mapOf(app).id, state.head, tokenOf(app));
  const answer = useAnswer<OverlayAnswer>(app, path, ({ work }) => (rolled ? work.rollout : work.overlay), true);
  const resting = state.overlay === "class" ? null : state.patch;
  const [pointed, setPointed] = useState<number | null>(null);
  const kind = rolled ? "rollout" : "patch";
  const choose = (patch: number): void => app.go({ patch, overlay: kind }, state.patch !== null);
  const pressed = (event: KeyboardEvent): void => {
    const next = patchBeside(event, picture, state.patch);
    if (event.key === "Escape" && state.patch !== null) app.go({ patch: null, overlay: "class" });
    else if (next !== null) choose(next);
    else return;
    setPointed(null);
    event.preventDefault();
  };
  return (
    <div class="framed">
      <div
        class="picture"
        tabIndex={0}
        role="application"
        aria-label={fill(words.image.picture, { rows: picture.rows, columns: picture.columns })}
        style={{ aspectRatio: `${picture.width} / ${picture.height}` }}
        onClick={(event) => choose(patchAt(event, picture))}
        onPointerMove={(event) => setPointed(patchAt(event, picture))}
        onPointerLeave={() => setPointed(null)}
        onKeyDown={pressed}>
        <Photograph app={app} />
        <Overlay answer={answer} scale={state.scale} opacity={opacity} />
        <Outline picture={picture} patch={resting} />
      </div>
      <p class="hint" aria-live="polite">
        {patchText(app, pointed ?? resting, answer)}
      </p>
      {answer && <OverlayLegend app={app} answer={answer} />}
    </div>
  );
}

/** The colours of an overlay, which are those of dark pages. */
function OverlayLegend({ app, answer }: { app: Store; answer: OverlayAnswer }) {
  const high = Math.max(...answer.weights, 0);
  return <Legend app={app} low={lowest(high, app.state.scale)} high={high} colours={gradient("dark")} />;
}

function patchText(
  { words: { image: words }, target, state }: Store,
  patch: number | null,
  answer: OverlayAnswer | null,
): string {
  if (patch === null) return state.overlay === "rollout" ? words.rolled : words.hint;
  const { columns } = target.image!;
  const name = fill(words.patch, { row: Math.floor(patch / columns) + 1, column: (patch % columns) + 1 });
  const weight = answer?.weights[patch];
  return weight === undefined ? name : fill(words.patchWeight, { patch: name, weight: figure(weight) });
}

function Photograph({ app }: { app: Store }) {
  const image = useRef<HTMLImageElement>(null);
  const { version, image: picture } = app.target;
  const [source, setSource] = useState<string | undefined>(undefined);
  useLayoutEffect(() => void pictureAddress(paths.image(version)).then(setSource), [version]);
  useLayoutEffect(() => {
    if (source !== undefined) void decoded(image.current!);
  }, [source]);
  const crisp = picture!.width < 512 ? "crisp" : undefined;
  return <img ref={image} class={crisp} src={source} alt="" draggable={false} />;
}

/** A frame around a patch. */
function Outline({ picture: { rows, columns }, patch }: { picture: Picture; patch: number | null }) {
  if (patch === null) return null;
  const style = {
    left: `${(100 * (patch % columns)) / columns}%`,
    top: `${(100 * Math.floor(patch / columns)) / rows}%`,
    width: `${100 / columns}%`,
    height: `${100 / rows}%`,
  };
  return <i class="patch" style={style} />;
}

/** The overlay of every head of this layer, small. */
function Heads({ app }: { app: Store }) {
  const { words, state, target } = app;
  const map = mapOf(app);
  const { width, height } = target.image!;
  const heads = Array.from({ length: map.heads }, (_, head) => head).filter((head) => app.opens(map.id, head));
  const asked = heads.map((head) => paths.overlay(map.id, head, tokenOf(app)));
  const answers = useAnswers<OverlayAnswer>(app, asked, 2, ({ work }) => work.overlay);
  // rollout combines all heads, so a single head has none
  const overlay = state.overlay !== "rollout" ? state.overlay : target.image!.first > 0 ? "class" : "patch";
  return (
    <div class="strip">
      {heads.map((head, index) => {
        const label = fill(words.grid.head, { head });
        return (
          <button
            key={head}
            type="button"
            class="small"
            style={{ aspectRatio: String(width / height) }}
            title={label}
            aria-label={label}
            aria-pressed={head === state.head}
            onClick={() => app.go({ map: map.id, head, overlay })}>
            <Photograph app={app} />
            <Overlay answer={answers[index] ?? null} scale={state.scale} />
          </button>
        );
      })}
    </div>
  );
}

type OverlayProps = { answer: OverlayAnswer | null; scale: Scale; opacity?: number };

function Overlay({ answer, scale, opacity }: OverlayProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    if (answer) paint(canvas.current!, answer, scale);
  }, [answer, scale]);
  return (
    <canvas ref={canvas} class="overlay" aria-hidden="true" style={opacity === undefined ? undefined : { opacity }} />
  );
}

/** Draw weights as colours, one pixel per patch, over a dimmed image. */
function paint(canvas: HTMLCanvasElement, { rows, columns, weights }: OverlayAnswer, scale: Scale): void {
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d")!;
  const pixels = context.createImageData(columns, rows);
  const table = ramp("dark");
  const strongest = weights.reduce((most, weight) => Math.max(most, weight), 0);
  weights.forEach((weight, patch) => {
    const strength = shade(weight, strongest, scale);
    pixels.data.set([...table[Math.round(255 * strength)]!, Math.round(255 * (0.6 + 0.2 * strength))], 4 * patch);
  });
  context.putImageData(pixels, 0, 0);
}
