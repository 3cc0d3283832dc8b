// The tile viewer: OpenSeadragon with the tiles of the server, axis labels and an overlay.

import type OpenSeadragon from "openseadragon";

import { tilesAtOnce } from "../api/transport.ts";
import { Debounced, framed } from "../shared/canvas.ts";
import { ARROWS, clamp, modified } from "../shared/format.ts";
import { type Store, mapOf, pictureOptions, tokensOf } from "../shell/store.ts";
import { drawAxis, drawMarks } from "./axes.ts";
import { OPTIONS, preventStyleSheet } from "./openseadragon_options.ts";
import { RestWatch } from "./rest_watch.ts";
import { TileLoader } from "./tile_source.ts";
import { type Cell, type Sight, cellAt, stride } from "./zoom_levels.ts";

export interface TileElements {
  container: HTMLElement;
  tiles: HTMLElement;
  over: HTMLCanvasElement;
  across: HTMLCanvasElement;
  down: HTMLCanvasElement;
}

export type TileEvents = { point(cell: Cell | null): void; choose(query: number): void };

export class TileViewer {
  private readonly app: Store;
  private readonly elements: TileElements;
  private readonly events: TileEvents;
  private readonly loader: TileLoader;
  private library!: typeof OpenSeadragon;
  private viewer: OpenSeadragon.Viewer | null = null;
  private readonly sizes = new ResizeObserver(() => this.resized());
  private readonly draw = framed(() => this.drawNow());
  private readonly noteSoon = new Debounced(250, () => this.note());
  /** The open tiles, and the view that was restored from the URL. */
  private opened = "";
  private restored = "";
  private pointed: Cell | null = null;
  private keys: readonly number[] = [];
  /** Actions that were requested before the map was open. */
  private readonly waiting: (() => void)[] = [];
  /** Whether the map was moved since the URL was last updated. */
  private moved = false;
  private moving = false;
  private readonly watch = new RestWatch(() => this.resting());
  private closed = false;

  constructor(app: Store, elements: TileElements, events: TileEvents) {
    [this.app, this.elements, this.events, this.loader] = [app, elements, events, new TileLoader(app)];
    void this.load();
  }

  private async load(): Promise<void> {
    const { elements } = this;
    this.library = (await import("openseadragon")).default;
    if (this.closed) return;
    preventStyleSheet();
    this.viewer = new this.library.Viewer({ element: elements.tiles, imageLoaderLimit: tilesAtOnce(), ...OPTIONS });
    this.viewer.canvas.focus = () => elements.container.focus({ preventScroll: true }); // the default scrolls the page
    this.listen(this.viewer);
    this.sizes.observe(elements.container);
  }

  private listen(viewer: OpenSeadragon.Viewer): void {
    viewer.addHandler("open", () => {
      if (this.restored !== this.viewKey()) this.restore(viewer.viewport);
      this.watch.start();
      for (const action of this.waiting.splice(0)) action();
      this.draw();
    });
    viewer.addHandler("update-viewport", () => this.draw());
    for (const event of ["pan", "zoom", "resize"] as const) {
      viewer.addHandler(event, () => {
        this.moved = true;
        this.loader.held = false;
        this.watch.start();
      });
    }
    viewer.addHandler("animation-start", () => {
      this.moving = true;
      if (this.watch.rested) this.loader.ticket += 1; // requests for the previous view are stale
      this.watch.start();
      this.loader.retry();
    });
    viewer.addHandler("animation-finish", () => {
      this.moving = false;
      this.loader.ticket += 1;
      this.noteSoon.call();
    });
    viewer.addHandler("canvas-click", (event) => {
      const cell = event.quick ? this.at(event.position.x, event.position.y) : null;
      if (!cell) return;
      this.point(cell);
      this.events.choose(cell.query);
    });
  }

  /** Call `action` when the map is open, now or later. */
  private once(action: (viewport: OpenSeadragon.Viewport) => void): void {
    const run = (): void => action(this.viewer!.viewport);
    if (this.viewer?.isOpen()) run();
    else this.waiting.push(run);
  }

  /** Whether nothing moves and all visible tiles are loaded. */
  private resting(): boolean {
    const { viewer } = this;
    if (this.closed || this.moving || !viewer?.isOpen()) return false;
    const whole = viewer.world.getItemAt(0).getFullyLoaded() && !viewer.world.needsDraw();
    return whole && viewer.viewport.getBounds().equals(viewer.viewport.getBounds(true));
  }

  private resized(): void {
    if (!this.opened) this.update(); // wait for a size, so that the whole map fits
    this.draw();
  }

  /** Key of the state that determines the view, apart from moves. */
  private viewKey(): string {
    const { state, target, viewsFromAddress } = this.app;
    return `${target.version} ${state.map} ${state.head} ${viewsFromAddress}`;
  }

  /** Show the current state: load other tiles if needed, and keep the view if the state does not set one. */
  update(): void {
    const { app } = this;
    if (!this.viewer || !this.elements.container.clientWidth) return;
    const tiles = `${this.viewKey()} ${pictureOptions(app)} ${app.theme}`;
    if (tiles !== this.opened) {
      if (this.opened && this.restored !== this.viewKey()) this.point(null);
      this.opened = tiles;
      this.loader.held = false;
      this.watch.start();
      this.viewer.open({ tileSource: this.loader.source(this.library) });
    }
    this.draw();
  }

  private sight(): Sight {
    const map = mapOf(this.app);
    const bounds = this.viewer!.viewport.getBounds(true);
    const scale = this.elements.container.clientWidth / (bounds.width * map.keys);
    return { left: bounds.x * map.keys, top: bounds.y * map.keys, scale };
  }

  /** The cell at a point of the container. */
  at(x: number, y: number): Cell | null {
    const map = mapOf(this.app);
    return this.viewer?.isOpen() ? cellAt(this.sight(), x, y, map.queries, map.keys) : null;
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

  /** The middle of a cell in OpenSeadragon's coordinates. */
  private middle(cell: Cell): OpenSeadragon.Point {
    const { keys } = mapOf(this.app);
    return new this.library.Point((cell.key + 0.5) / keys, (cell.query + 0.5) / keys);
  }

  zoom(by: number): void {
    this.once((viewport) =>
      viewport.zoomBy(by, this.pointed ? this.middle(this.pointed) : undefined).applyConstraints(),
    );
  }

  whole(): void {
    this.once((viewport) => viewport.goHome());
  }

  /** Scroll and zoom so that a cell is visible. */
  show(cell: Cell): void {
    this.once((viewport) => {
      const { scale } = this.sight();
      if (scale < 8) viewport.zoomBy(8 / scale);
      viewport.panTo(this.middle(cell)).applyConstraints();
      this.point(cell);
    });
  }

  /** Handle a key; return false if it is not used. */
  pressed(event: KeyboardEvent): boolean {
    const step = ARROWS[event.key];
    if (modified(event)) return false;
    if (step && event.shiftKey) this.once((viewport) => this.pan(viewport, step[1] * 80, step[0] * 80));
    else if (step) this.once((viewport) => this.walk(viewport, step));
    else if (event.key === "Enter" && this.pointed) this.events.choose(this.pointed.query);
    else return this.zoomKey(event.key);
    return true;
  }

  /** The keys + − 0. */
  zoomKey(key: string): boolean {
    if (key === "+" || key === "=") this.zoom(2);
    else if (key === "-" || key === "_") this.zoom(0.5);
    else if (key === "0") this.whole();
    else return false;
    return true;
  }

  private pan(viewport: OpenSeadragon.Viewport, right: number, below: number): void {
    viewport.panBy(viewport.deltaPointsFromPixels(new this.library.Point(right, below))).applyConstraints();
  }

  private walk(viewport: OpenSeadragon.Viewport, [below, right]: readonly [number, number]): void {
    const map = mapOf(this.app);
    const sight = this.sight();
    const { container } = this.elements;
    const [width, height] = [container.clientWidth / sight.scale, container.clientHeight / sight.scale];
    const by = stride(sight.scale);
    const from = this.pointed ?? { query: Math.floor(sight.top + height / 2), key: Math.floor(sight.left + width / 2) };
    const cell = {
      query: clamp(from.query + by * below, 0, map.queries - 1),
      key: clamp(from.key + by * right, 0, map.keys - 1),
    };
    const [dx, dy] = [outside(cell.key, sight.left, width), outside(cell.query, sight.top, height)];
    if (dx || dy) viewport.panBy(new this.library.Point(dx / map.keys, dy / map.keys), true);
    this.point(cell);
  }

  private drawNow(): void {
    if (this.closed || !this.viewer?.isOpen()) return;
    const { app, pointed, elements } = this;
    const map = mapOf(app);
    const sight = this.sight();
    const query = app.state.direction === "from" ? app.state.token : null;
    const keys = query === null ? [] : this.keys;
    const top = { tokens: tokensOf(app, map, "key"), total: map.keys, chosen: keys, pointed: pointed?.key ?? null };
    const chosen = query === null ? [] : [query];
    const left = { tokens: tokensOf(app, map, "query"), total: map.queries, chosen, pointed: pointed?.query ?? null };
    drawAxis(elements.across, top, sight.left, sight.scale, true);
    drawAxis(elements.down, left, sight.top, sight.scale, false);
    drawMarks(elements.over, sight, { pointed, query, keys }, map.queries, map.keys);
    elements.container.dataset["scale"] = sight.scale.toFixed(3);
  }

  /** Write the view to the state if it was moved. */
  note(): void {
    const { viewer } = this;
    if (this.closed || !this.moved || !viewer?.isOpen()) return;
    this.moved = false;
    this.noteSoon.cancel();
    const { keys } = mapOf(this.app);
    const { viewport } = viewer;
    const home = Math.abs(viewport.getZoom() / viewport.getHomeZoom() - 1) < 0.01;
    const bounds = viewport.getBounds();
    this.app.go({ sight: home ? null : [bounds.x * keys, bounds.y * keys, bounds.width * keys] }, true);
  }

  /** Go to the view in the URL. */
  private restore(viewport: OpenSeadragon.Viewport): void {
    const { sight } = this.app.state;
    const { keys } = mapOf(this.app);
    const { container } = this.elements;
    this.restored = this.viewKey();
    viewport.resize(new this.library.Point(container.clientWidth, container.clientHeight), false); // it was created without a size
    if (!sight) viewport.goHome(true);
    else {
      const [left, top, width] = sight.map((cells) => cells / keys) as [number, number, number];
      const bounds = new this.library.Rect(left, top, width, width / viewport.getAspectRatio());
      viewport.fitBounds(bounds, true).applyConstraints(true);
    }
    this.moved = false;
  }

  close(): void {
    this.closed = true;
    this.watch.close();
    this.noteSoon.cancel();
    this.sizes.disconnect();
    this.viewer?.destroy();
  }
}

/** Distance of a position from the visible range. */
function outside(position: number, first: number, count: number): number {
  if (position < first) return position - first - 0.5;
  return position + 1 > first + count ? position + 1.5 - first - count : 0;
}
