// The map itself: OpenSeadragon over the server's tiles, with labels along both axes and marks over it.

import OpenSeadragon from "openseadragon";

import { type Shown, type App, headName, look, mapOf, tokensOf } from "./app.ts";
import { begin, end } from "./ahead.ts";
import { Refusal, ask, paths } from "./api.ts";
import { drawAxis, drawMarks } from "./axes.ts";
import { ARROWS, Settled, framed, make } from "./dom.ts";
import { type Cell, type Sight, TILE, cellAt, clamp, deepest, shallowest, stride } from "./levels.ts";
import { paintShades, readPgm } from "./shades.ts";
import type { State } from "./state.ts";

const LARGEST = 48; // pixels a cell
const AGAIN = 200; // milliseconds until a tile that was dropped as stale is asked for once more

/** OpenSeadragon adds a style sheet to the page, which the server's policy forbids, unless it finds one of this name.
 * This one says nothing. */
function withoutStyle(): void {
  const name = "data-openseadragon-mobile-css";
  if (document.querySelector(`style[${name}]`)) return;
  const inert = document.createElementNS("urn:nothing", "style");
  inert.setAttribute(name, "true");
  document.head.append(inert);
}

export interface ZoomEvents {
  point(cell: Cell | null): void;
  choose(query: number): void;
}

export class Zoom implements Shown {
  readonly element: HTMLElement;
  private readonly app: App;
  private readonly events: ZoomEvents;
  private readonly stage: HTMLElement;
  private readonly over = make("canvas", { className: "over", attributes: { "aria-hidden": "true" } });
  private readonly across = make("canvas", { className: "across", attributes: { "aria-hidden": "true" } });
  private readonly down = make("canvas", { className: "down", attributes: { "aria-hidden": "true" } });
  private readonly viewer: OpenSeadragon.Viewer;
  private readonly sizes: ResizeObserver;
  private readonly draw = framed(() => this.drawNow());
  private readonly keep = new Settled(250, () => this.note());
  private ticket = 0;
  private missed: OpenSeadragon.Tile[] = [];
  /** Cancelled: no tile is asked for until the map is moved again, though it may still be coming to rest. */
  private held = false;
  private pointed: Cell | null = null;
  private keys: readonly number[] = [];
  private opened = false;
  /** What was asked of the map before there was one. */
  private readonly waiting: (() => void)[] = [];
  /** Moved since the address was last told. */
  private moved = false;
  private moving = false;
  private arrived = false;
  /** Frames of the screen since something last moved; null when that is not looked at. */
  private calm: number | null = null;
  private closed = false;

  constructor(app: App, events: ZoomEvents) {
    this.app = app;
    this.events = events;
    const { words, state } = app;
    const map = mapOf(app);
    const place = make("div", "tiles");
    this.stage = make("div", {
      className: "stage", tabIndex: 0,
      attributes: {
        role: "application", "aria-label": words.map.stage(map.name, headName(app, state.head)),
        "aria-describedby": "here", "data-keep": "stage",
      },
    }, place, this.over);
    this.element = make("div", "zoom",
      make("div", { className: "corner", attributes: { "aria-hidden": "true" } },
        make("span", {}, words.map.keys), make("span", {}, words.map.queries)),
      this.across, this.down, this.stage);
    withoutStyle();
    this.viewer = new OpenSeadragon.Viewer({
      element: place, drawer: "canvas", tabIndex: -1, keyboardNavEnabled: false, showNavigationControl: false,
      preserveViewport: true, animationTime: 0.35, springStiffness: 9, visibilityRatio: 0.5, minZoomImageRatio: 0.7,
      minPixelRatio: 1, imageSmoothingEnabled: false, // never shrunk: the strongest cell stays seen
      maxZoomPixelRatio: LARGEST, maxImageCacheCount: 400, imageLoaderLimit: 4, timeout: 300000,
      zoomPerScroll: 1.35, gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
      gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true },
    });
    this.listen();
    this.sizes = new ResizeObserver(() => {
      if (!this.opened && this.stage.clientWidth) this.open(); // not before it has a size: the whole map must fit it
      this.draw();
    });
    this.sizes.observe(this.element);
  }

  private listen(): void {
    const { viewer, stage } = this;
    viewer.canvas.focus = () => stage.focus({ preventScroll: true }); // its own, at a click, moves the page
    viewer.addOnceHandler("open", () => {
      this.restore();
      this.moved = false;
    });
    viewer.addHandler("open", () => {
      this.rest();
      for (const action of this.waiting.splice(0)) action();
      this.draw();
    });
    viewer.addHandler("update-viewport", () => this.draw());
    for (const event of ["pan", "zoom", "resize"] as const) {
      viewer.addHandler(event, () => {
        this.moved = true;
        this.held = false;
        this.rest();
      });
    }
    viewer.addHandler("animation-start", () => {
      this.moving = true;
      if (this.arrived) this.ticket += 1; // what waits for the sight before is stale
      this.rest();
      for (const tile of this.missed.splice(0)) tile.exists = true; // cancelled or refused: asked for after a move
    });
    viewer.addHandler("animation-finish", () => {
      this.moving = false;
      this.ticket += 1;
      this.keep.call();
    });
    viewer.addHandler("canvas-click", (event) => {
      if (!event.quick) return;
      const cell = this.at(event.position.x, event.position.y);
      if (cell) {
        this.point(cell);
        this.events.choose(cell.query);
      }
    });
    stage.addEventListener("pointermove", (event) => {
      const box = stage.getBoundingClientRect();
      this.point(this.at(event.clientX - box.left, event.clientY - box.top));
    });
    stage.addEventListener("pointerleave", () => this.point(null));
    stage.addEventListener("keydown", (event) => { if (this.pressed(event)) event.preventDefault(); });
  }

  /** Do it on the map: at once, or once there is one. */
  private once(action: () => void): void {
    if (this.viewer.isOpen()) action();
    else this.waiting.push(action);
  }

  /** From now until nothing moves and every tile in sight is there, something is ahead. OpenSeadragon tells of a move a
   * frame after it was asked for: calm is what lasts for two. */
  private rest(): void {
    const before = this.calm;
    this.calm = 0;
    if (before !== null) return;
    begin(this, "map");
    const look = (): void => {
      this.calm = this.resting() ? this.calm! + 1 : 0;
      if (!this.closed && this.calm < 3) requestAnimationFrame(look);
      else {
        this.calm = null;
        this.arrived = true;
        end(this);
      }
    };
    requestAnimationFrame(look);
  }

  private resting(): boolean {
    const { viewer } = this;
    if (this.closed || this.moving || !viewer.isOpen()) return false;
    const whole = viewer.world.getItemAt(0).getFullyLoaded() && !viewer.world.needsDraw();
    return whole && viewer.viewport.getBounds().equals(viewer.viewport.getBounds(true));
  }

  /** Tiles of what is looked at now; the place on the map stays. */
  private open(): void {
    const { app } = this;
    this.held = false;
    this.rest();
    const map = mapOf(app);
    this.opened = true;
    const source = new OpenSeadragon.TileSource({
      width: map.keys, height: map.queries, tileSize: TILE, tileOverlap: 0,
      minLevel: shallowest(map.queries, map.keys), maxLevel: deepest(map.queries, map.keys),
    });
    const [head, asked] = [app.state.head, look(app)];
    source.getTileUrl = (level, column, row) => paths.tile(map.id, head, level, column, row, asked);
    source.hasTransparency = () => false;
    source.downloadTileStart = (job) => {
      const control = new AbortController();
      job.userData["control"] = control;
      const wanted = this.held ? Promise.resolve(undefined)
        : app.work.run(app.words.work.tiles, (signal) => this.tile(job.src, signal), control);
      void wanted.then((file) => {
        if (file) job.finish(paintShades(document.createElement("canvas"), readPgm(file), app.theme), null, "context2d");
        else {
          this.held ||= control.signal.aborted && control.signal.reason !== job;
          job.fail(app.words.cancelled, null);
          this.missed.push(job.tile);
        }
      });
    };
    source.downloadTileAbort = (job) => (job.userData["control"] as AbortController | undefined)?.abort(job);
    this.viewer.open({ tileSource: source });
  }

  /** One tile. The server drops what waits behind a newer screenful; what is still wanted is asked for again. */
  private async tile(address: string, signal: AbortSignal): Promise<ArrayBuffer> {
    for (;;) {
      try {
        return await (await ask(`${address}&ticket=${this.ticket}`, signal)).arrayBuffer();
      } catch (error) {
        if (!(error instanceof Refusal) || error.status !== 409) throw error;
        await new Promise((wake) => setTimeout(wake, AGAIN));
        signal.throwIfAborted();
      }
    }
  }

  sight(): Sight {
    const map = mapOf(this.app);
    const bounds = this.viewer.viewport.getBounds(true);
    const scale = this.stage.clientWidth / (bounds.width * map.keys);
    return { left: bounds.x * map.keys, top: bounds.y * map.keys, scale };
  }

  private at(x: number, y: number): Cell | null {
    const map = mapOf(this.app);
    return this.viewer.isOpen() ? cellAt(this.sight(), x, y, map.queries, map.keys) : null;
  }

  point(cell: Cell | null): void {
    if (cell?.query === this.pointed?.query && cell?.key === this.pointed?.key) return;
    this.pointed = cell;
    this.events.point(cell);
    this.draw();
  }

  mark(keys: readonly number[]): void {
    this.keys = keys;
    this.draw();
  }

  zoom(by: number): void {
    this.once(() => {
      const map = mapOf(this.app);
      const at = this.pointed;
      const about = at ? new OpenSeadragon.Point((at.key + 0.5) / map.keys, (at.query + 0.5) / map.keys) : undefined;
      this.viewer.viewport.zoomBy(by, about).applyConstraints();
    });
  }

  whole(): void {
    this.once(() => this.viewer.viewport.goHome());
  }

  /** Bring a cell into sight, and let it be seen as a cell. */
  show(cell: Cell): void {
    this.once(() => {
      const map = mapOf(this.app);
      const { scale } = this.sight();
      const { viewport } = this.viewer;
      if (scale < 8) viewport.zoomBy(8 / scale);
      const middle = new OpenSeadragon.Point((cell.key + 0.5) / map.keys, (cell.query + 0.5) / map.keys);
      viewport.panTo(middle).applyConstraints();
      this.point(cell);
    });
  }

  private pressed(event: KeyboardEvent): boolean {
    const step = ARROWS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (step && event.shiftKey) this.once(() => this.pan(step[1] * 80, step[0] * 80));
    else if (step) this.once(() => this.walk(step));
    else if (event.key === "+" || event.key === "=") this.zoom(2);
    else if (event.key === "-" || event.key === "_") this.zoom(0.5);
    else if (event.key === "0") this.whole();
    else if (event.key === "Enter" && this.pointed) this.events.choose(this.pointed.query);
    else return false;
    return true;
  }

  private pan(right: number, below: number): void {
    const { viewport } = this.viewer;
    viewport.panBy(viewport.deltaPointsFromPixels(new OpenSeadragon.Point(right, below))).applyConstraints();
  }

  private walk([below, right]: readonly [number, number]): void {
    const map = mapOf(this.app);
    const sight = this.sight();
    const [width, height] = [this.stage.clientWidth / sight.scale, this.stage.clientHeight / sight.scale];
    const by = stride(sight.scale);
    const from = this.pointed ?? { query: Math.floor(sight.top + height / 2), key: Math.floor(sight.left + width / 2) };
    const cell = {
      query: clamp(from.query + by * below, 0, map.queries - 1),
      key: clamp(from.key + by * right, 0, map.keys - 1),
    };
    const [dx, dy] = [outside(cell.key, sight.left, width), outside(cell.query, sight.top, height)];
    if (dx || dy) this.viewer.viewport.panBy(new OpenSeadragon.Point(dx / map.keys, dy / map.keys), true);
    this.point(cell);
  }

  private drawNow(): void {
    if (this.closed || !this.viewer.isOpen()) return;
    const map = mapOf(this.app);
    const sight = this.sight();
    const { token, direction } = this.app.state;
    const query = direction === "from" ? token : null;
    const keys = query === null ? [] : this.keys;
    const { pointed } = this;
    drawAxis(this.across, {
      tokens: tokensOf(this.app, map, "key"), total: map.keys, chosen: keys, pointed: pointed?.key ?? null,
    }, sight.left, sight.scale, true);
    drawAxis(this.down, {
      tokens: tokensOf(this.app, map, "query"), total: map.queries, chosen: query === null ? [] : [query],
      pointed: pointed?.query ?? null,
    }, sight.top, sight.scale, false);
    drawMarks(this.over, sight, { pointed, query, keys }, map.queries, map.keys);
    this.stage.dataset["scale"] = sight.scale.toFixed(3);
  }

  /** Let the address tell the place, if one has moved. */
  note(): void {
    if (this.closed || !this.moved || !this.viewer.isOpen()) return;
    this.moved = false;
    this.keep.cancel();
    const map = mapOf(this.app);
    const { viewport } = this.viewer;
    const home = Math.abs(viewport.getZoom() / viewport.getHomeZoom() - 1) < 0.01;
    const bounds = viewport.getBounds();
    this.app.go({ sight: home ? null : [bounds.x * map.keys, bounds.y * map.keys, bounds.width * map.keys] }, true);
  }

  /** The place that the address tells. */
  private restore(): void {
    const { sight } = this.app.state;
    const map = mapOf(this.app);
    const { viewport } = this.viewer;
    const size = new OpenSeadragon.Point(this.stage.clientWidth, this.stage.clientHeight);
    viewport.resize(size, false); // it was made without one
    if (!sight) {
      viewport.goHome(true);
      return;
    }
    const [left, top, width] = sight.map((cells) => cells / map.keys) as [number, number, number];
    const bounds = new OpenSeadragon.Rect(left, top, width, width / viewport.getAspectRatio());
    viewport.fitBounds(bounds, true).applyConstraints(true);
  }

  update(before: State): void {
    const { reduce, scale } = this.app.state;
    if (this.opened && (before.reduce !== reduce || before.scale !== scale)) this.open();
    this.draw();
  }

  close(): void {
    this.closed = true;
    this.keep.cancel();
    this.sizes.disconnect();
    this.viewer.destroy();
  }
}

/** How far a place lies outside what is seen. */
function outside(place: number, first: number, count: number): number {
  if (place < first) return place - first - 0.5;
  return place + 1 > first + count ? place + 1.5 - first - count : 0;
}
