// Tile source of OpenSeadragon: loads shades from the server and colours them.

import type OpenSeadragon from "openseadragon";

import { Refusal, ask, paths } from "../api/client.ts";
import { paintShades, readPgm } from "../shared/shades.ts";
import { type Store, mapOf, pictureOptions } from "../shell/store.ts";
import { TILE, deepest, shallowest } from "./zoom_levels.ts";

const RETRY_DELAY = 200; // milliseconds until a tile that was dropped as stale is requested again

export class TileLoader {
  /** Incremented with every new view: the server drops waiting tiles of older tickets. */
  ticket = 0;
  /** Set after a cancellation: no tile is requested until the map is moved again. */
  held = false;
  private missed: OpenSeadragon.Tile[] = [];
  private readonly app: Store;

  constructor(app: Store) {
    this.app = app;
  }

  /** Allow cancelled or rejected tiles to be requested again. */
  retry(): void {
    for (const tile of this.missed.splice(0)) tile.exists = true;
  }

  source(library: typeof OpenSeadragon): OpenSeadragon.TileSource {
    const { app } = this;
    const map = mapOf(app);
    const source = new library.TileSource({
      width: map.keys,
      height: map.queries,
      tileSize: TILE,
      tileOverlap: 0,
      minLevel: shallowest(map.queries, map.keys),
      maxLevel: deepest(map.queries, map.keys),
    });
    const [head, options] = [app.state.head, pictureOptions(app)];
    source.getTileUrl = (level, column, row) => paths.tile(map.id, head, level, column, row, options);
    source.hasTransparency = () => false;
    const stored = app.recorded?.level(map.id, head) ?? Infinity;
    const exists = source.tileExists.bind(source);
    source.tileExists = (level, column, row) => level <= stored && exists(level, column, row);
    source.downloadTileStart = (job) => this.download(job);
    source.downloadTileAbort = (job) => (job.userData["control"] as AbortController | undefined)?.abort(job);
    return source;
  }

  private download(job: OpenSeadragon.ImageJob): void {
    const { app } = this;
    const control = new AbortController();
    job.userData["control"] = control;
    const wanted = this.held
      ? Promise.resolve(undefined)
      : app.request(
          ({ work }) => work.tiles,
          (signal) => this.tile(job.src, signal),
          control,
        );
    void wanted.then((file) => {
      if (file) {
        job.finish(paintShades(document.createElement("canvas"), readPgm(file), app.theme), null, "context2d");
        return;
      }
      this.held ||= control.signal.aborted && control.signal.reason !== job;
      job.fail(app.words.cancelled, null);
      this.missed.push(job.tile);
    });
  }

  private async tile(address: string, signal: AbortSignal): Promise<ArrayBuffer> {
    for (;;) {
      try {
        return await (await ask(`${address}&ticket=${this.ticket}`, signal)).arrayBuffer();
      } catch (error) {
        if (!(error instanceof Refusal) || error.status !== 409) throw error;
        await new Promise((wake) => setTimeout(wake, RETRY_DELAY));
        signal.throwIfAborted();
      }
    }
  }
}
