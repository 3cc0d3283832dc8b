// The view Map: one head, from the whole matrix to single cells, with a read-out, the strongest keys and the text.

import { type App, type Shown, mapOf, named, tokensOf } from "./app.ts";
import { type CellAnswer, type Profile, type QueryAnswer, answer, paths } from "./api.ts";
import { choice, chooseHead, stepHead, weighed } from "./controls.ts";
import { Settled, figure, make } from "./dom.ts";
import type { Cell } from "./levels.ts";
import { shade } from "./palette.ts";
import type { State } from "./state.ts";
import { TokenText } from "./tokentext.ts";
import { Latest } from "./work.ts";
import { Zoom } from "./zoom.ts";

const STRONGEST = 20;

export class MapView implements Shown {
  readonly element: HTMLElement;
  private readonly app: App;
  private readonly zoom: Zoom;
  private readonly text: TokenText | null;
  private readonly here = make("div", { className: "here", id: "here", attributes: { "aria-live": "polite" } });
  private readonly strongest = make("section", "card");
  private readonly profile = make("section", { className: "card", hidden: true });
  private readonly cells: Latest;
  private readonly queries: Latest;
  private readonly heads: Latest;
  private readonly ask = new Settled(70, (cell: Cell) => void this.weigh(cell));
  private row: { query: number; found: QueryAnswer } | null = null;

  constructor(app: App) {
    this.app = app;
    const { words, state } = app;
    [this.cells, this.queries, this.heads] = [new Latest(app.work), new Latest(app.work), new Latest(app.work)];
    this.zoom = new Zoom(app, { point: (cell) => this.point(cell), choose: (query) => this.choose(query) });
    const tokens = tokensOf(app, mapOf(app), "key");
    this.text = tokens && new TokenText(tokens, words.map.text, {
      choose: (token) => this.choose(Math.min(token, mapOf(app).queries - 1)),
      clear: () => app.go({ token: null, end: null }),
    });
    const button = (label: string, sign: string, action: () => void): HTMLButtonElement =>
      make("button", {
        type: "button", className: "icon", title: label, onclick: action, attributes: { "aria-label": label },
      }, sign);
    const back = (): void => app.go({ map: null, token: null, end: null, sight: null });
    this.element = make("section", "look",
      make("div", "toolbar",
        make("button", { type: "button", className: "plain back", onclick: back }, `← ${words.map.back}`),
        chooseHead(app),
        choice(words.map.reduce, words.map.reduces, state.reduce, (reduce) => app.go({ reduce })),
        choice(words.map.scale, words.map.scales, state.scale, (scale) => app.go({ scale })),
        make("div", "icons",
          button(words.map.zoomIn, "+", () => this.zoom.zoom(2)),
          button(words.map.zoomOut, "−", () => this.zoom.zoom(0.5)),
          button(words.map.whole, "⤢", () => this.zoom.whole()))),
      make("div", "desk", this.zoom.element,
        make("aside", "panel", make("section", "card", make("h2", {}, words.map.here), this.here), this.strongest,
          this.text && make("section", "card reading", make("h2", {}, words.map.text), this.text.element),
          this.profile)));
    this.point(null);
    void this.describe();
    void this.chosen();
  }

  private point(cell: Cell | null): void {
    const { words } = this.app;
    this.cells.stop(); // an answer about the cell before must not be told under this one
    if (!cell) {
      this.ask.cancel();
      this.here.replaceChildren(make("p", "hint", words.map.hover));
      return;
    }
    this.tell(cell, null);
    this.ask.call(cell);
  }

  private async weigh(cell: Cell): Promise<void> {
    const { app } = this;
    const map = mapOf(app);
    const found = await this.cells.run(app.words.work.cell, (signal) =>
      answer<CellAnswer>(paths.cell(map.id, app.state.head, cell.query, cell.key), signal));
    if (found) this.tell(cell, found);
  }

  private tell(cell: Cell, found: CellAnswer | null): void {
    const { app } = this;
    const { words } = app;
    const map = mapOf(app);
    const line = (name: string, value: string, place?: number): HTMLElement =>
      make("div", {}, make("dt", {}, name),
        make("dd", {}, value, place !== undefined && make("small", {}, ` ${place}`)));
    const [queries, keys] = [tokensOf(app, map, "query"), tokensOf(app, map, "key")];
    this.here.replaceChildren(make("dl", {},
      line(words.map.query, named(queries, cell.query), queries ? cell.query : undefined),
      line(words.map.key, named(keys, cell.key), keys ? cell.key : undefined),
      line(words.map.weight, found ? figure(found.weight) : "…"),
      line(words.map.rank, found ? words.map.rankOf(found.rank, map.keys) : "…")));
  }

  private choose(query: number): void {
    const { state } = this.app;
    const again = state.token === query && state.direction === "from";
    this.app.go({ token: again ? null : query, end: null, direction: "from" });
  }

  /** The strongest keys of the chosen query: in the list, on the map and in the text. */
  private async chosen(): Promise<void> {
    const { app } = this;
    const { words, state } = app;
    const map = mapOf(app);
    const query = state.direction === "from" ? state.token : null;
    this.row = null;
    this.zoom.mark([]); // those of another query
    if (query === null) {
      this.queries.stop();
      this.text?.choose(null);
      this.text?.colour(null);
      this.text?.mark([]);
      this.strongest.replaceChildren(make("h2", {}, words.map.strongest("…")), make("p", "hint", words.map.choose));
      return;
    }
    if (map.query_tokens === map.key_tokens) this.text?.choose(query);
    const found = await this.queries.run(words.work.query(query), (signal) =>
      answer<QueryAnswer>(paths.query(map.id, state.head, query, STRONGEST), signal));
    if (!found) return;
    this.row = { query, found };
    this.list();
  }

  private list(): void {
    if (!this.row) return;
    const { app } = this;
    const { words, state } = app;
    const { query, found } = this.row;
    const map = mapOf(app);
    const keys = tokensOf(app, map, "key");
    const best = found.weights[0] ?? 0;
    this.zoom.mark(found.keys);
    const shades = new Float32Array(map.keys);
    if (found.row) found.row.forEach((weight, key) => { shades[key] = shade(weight, best, state.scale); });
    else found.keys.forEach((key, place) => { shades[key] = shade(found.weights[place]!, best, state.scale); });
    this.text?.colour(shades);
    this.text?.mark(found.keys);
    if (found.keys[0] !== undefined) this.text?.reveal(found.keys[0]);
    const clear = (): void => app.go({ token: null, end: null });
    this.strongest.replaceChildren(
      make("header", "between", make("h2", {}, words.map.strongest(named(tokensOf(app, map, "query"), query))),
        make("button", { type: "button", className: "plain", onclick: clear }, words.map.unchoose)),
      make("ol", "weights", ...found.keys.map((key, place) => {
        const weight = found.weights[place]!;
        return weighed(named(keys, key), weight, best, figure(weight), () => this.zoom.show({ query, key }));
      })));
  }

  private async describe(): Promise<void> {
    const { app } = this;
    const { words } = app;
    const { head } = app.state;
    if (head === "mean") return;
    const found = await this.heads.run(words.work.profile, (signal) =>
      answer<Profile[]>(paths.profile(mapOf(app).id), signal));
    const profile = found?.[head];
    if (!profile) return;
    const told = (value: number | null, digits: number): string => value === null ? "–" : value.toFixed(digits);
    const share = (value: number | null): string => value === null ? "–" : `${told(100 * value, 1)} %`;
    const lines: [string, string][] = [
      [words.map.entropy, told(profile.entropy, 2)],
      [words.map.distance, told(profile.distance, 1)],
      [words.map.first, share(profile.first)],
      [words.map.previous, share(profile.previous)],
      [words.map.same, share(profile.same)],
    ];
    this.profile.hidden = false;
    this.profile.replaceChildren(make("h2", {}, words.map.profile),
      make("dl", {}, ...lines.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
  }

  update(before: State): void {
    const { state } = this.app;
    this.zoom.update(before);
    if (before.token !== state.token || before.direction !== state.direction) void this.chosen();
    else if (before.scale !== state.scale) this.list();
  }

  key(event: KeyboardEvent): boolean {
    if (event.key === "Escape" && this.app.state.token !== null) {
      this.app.go({ token: null, end: null });
      return true;
    }
    if (event.key === "+" || event.key === "=") this.zoom.zoom(2);
    else if (event.key === "-" || event.key === "_") this.zoom.zoom(0.5);
    else if (event.key === "0") this.zoom.whole();
    else return stepHead(this.app, event.key);
    return true;
  }

  note(): void {
    this.zoom.note();
  }

  close(): void {
    this.ask.cancel();
    for (const latest of [this.cells, this.queries, this.heads]) latest.stop();
    this.text?.close();
    this.zoom.close();
  }
}
