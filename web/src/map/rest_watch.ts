// Reports to tests and scripts when the map has stopped moving.

import { begin, end } from "../api/pending_requests.ts";

const CALM = 3; // frames: OpenSeadragon reports a move one frame late

/** Reports the map as pending from `start` until it rests. */
export class RestWatch {
  /** Whether the map has rested before. */
  rested = false;
  private calm: number | null = null;
  private closed = false;
  private readonly resting: () => boolean;

  constructor(resting: () => boolean) {
    this.resting = resting;
    this.start();
  }

  start(): void {
    const watching = this.calm !== null;
    this.calm = 0;
    if (watching) return;
    begin(this, "map");
    requestAnimationFrame(() => this.check());
  }

  private check(): void {
    this.calm = this.resting() ? this.calm! + 1 : 0;
    if (!this.closed && this.calm < CALM) requestAnimationFrame(() => this.check());
    else {
      this.calm = null;
      this.rested = true;
      end(this);
    }
  }

  close(): void {
    this.closed = true;
  }
}
