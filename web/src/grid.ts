// All layers and heads as thumbnails: a table whose rows are maps and whose columns are heads.

import { type App, type Shown, look } from "./app.ts";
import { ask, paths } from "./api.ts";
import { choice } from "./controls.ts";
import { ARROWS, make } from "./dom.ts";
import { paintShades, readPgm } from "./shades.ts";
import type { State } from "./state.ts";
import { each } from "./work.ts";

const AT_ONCE = 3; // requests: the browser keeps a few free for what is clicked meanwhile

export class Grid implements Shown {
  readonly element = make("section", "grid");
  private readonly app: App;
  private readonly pictures: HTMLCanvasElement[] = [];
  private readonly links: HTMLAnchorElement[][] = [];
  private control = new AbortController();

  constructor(app: App) {
    this.app = app;
    this.build();
    void this.fill();
  }

  private build(): void {
    const { words, target, state } = this.app;
    const heads = target.maps.reduce((sum, map) => sum + map.heads, 0);
    const most = Math.max(...target.maps.map((map) => map.heads), 0);
    const rows = target.maps.map((map) => {
      const cells = Array.from({ length: map.heads }, (_, head) => {
        const picture = make("canvas", "thumbnail");
        picture.style.aspectRatio = String(Math.min(4, Math.max(0.25, map.keys / map.queries)));
        const label = words.grid.open(map.name, String(head));
        const link = make("a", {
          href: `#map?map=${map.id}&head=${head}`, title: label, attributes: { "aria-label": label },
          onclick: (event) => {
            event.preventDefault();
            this.app.go({ map: map.id, head, sight: null, token: null, end: null });
          },
          onkeydown: (event) => this.move(event, map.id, head),
        }, picture);
        this.pictures.push(picture);
        (this.links[map.id] ??= []).push(link);
        return make("td", {}, link);
      });
      const name = make("th", { attributes: { scope: "row" } },
        make("b", { title: map.name }, map.name),
        make("span", {}, `${words.grid.kinds[map.kind]} · ${words.grid.size(map.queries, map.keys)}`));
      return make("tr", {}, name, ...cells);
    });
    const columns = Array.from({ length: most }, (_, head) =>
      make("th", { attributes: { scope: "col" } }, String(head)));
    const header = make("tr", {}, make("td"), ...columns);
    const lead = target.maps.length ? words.grid.lead(target.maps.length, heads) : words.grid.none;
    this.element.append(
      make("header", "heading",
        make("div", {}, make("h1", {}, words.grid.title), make("p", "lead", lead)),
        make("div", "tools",
          choice(words.map.reduce, words.map.reduces, state.reduce, (reduce) => this.app.go({ reduce })),
          choice(words.map.scale, words.map.scales, state.scale, (scale) => this.app.go({ scale })))),
      make("div", { className: "sheet", tabIndex: -1 },
        make("table", {}, make("thead", {}, header), make("tbody", {}, ...rows))));
  }

  /** Ask for the pictures, those in sight first. */
  private async fill(): Promise<void> {
    const { app } = this;
    const wanted = app.target.maps.flatMap((map) => Array.from({ length: map.heads }, (_, head) => ({ map, head })))
      .map((one, place) => ({ ...one, picture: this.pictures[place]! }));
    this.control = new AbortController();
    const control = this.control;
    const seen = ({ picture }: (typeof wanted)[number]): number => {
      const place = picture.getBoundingClientRect();
      return place.top < window.innerHeight && place.left < window.innerWidth ? 0 : 1;
    };
    let done = 0;
    const words = app.words.work;
    const tell = { toString: () => words.overviews(done, wanted.length) };
    const asked = look(app);
    await app.work.run(tell, async (signal) => {
      await new Promise(requestAnimationFrame); // they have no place before
      const ranks = new Map(wanted.map((one) => [one, seen(one)]));
      wanted.sort((a, b) => ranks.get(a)! - ranks.get(b)!);
      await each(wanted, AT_ONCE, signal, async ({ map, head, picture }) => {
        const response = await ask(paths.overview(map.id, head, asked), signal);
        const shades = readPgm(await response.arrayBuffer());
        signal.throwIfAborted();
        paintShades(picture, shades, app.theme);
        picture.classList.add("there");
        done += 1;
      });
    }, control);
  }

  private move(event: KeyboardEvent, map: number, head: number): void {
    const by = ARROWS[event.key];
    if (!by) return;
    event.preventDefault();
    const row = this.links[map + by[0]];
    row?.[Math.min(Math.max(head + by[1], 0), row.length - 1)]?.focus();
  }

  update(before: State): void {
    if (before.reduce !== this.app.state.reduce || before.scale !== this.app.state.scale) {
      this.control.abort();
      void this.fill();
    }
  }

  close(): void {
    this.control.abort();
  }
}
