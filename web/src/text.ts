// The view Text: the tokens themselves, coloured by what the chosen one attends to or receives; links of a span.

import { type App, type Shown, mapOf, tokensOf } from "./app.ts";
import { type KeyAnswer, type QueryAnswer, type ReceivedAnswer, answer, paths } from "./api.ts";
import { choice, chooseHead, stepHead, weighed } from "./controls.ts";
import { figure, make } from "./dom.ts";
import { type Link, MOST_FROM, drawLinks } from "./links.ts";
import { shade } from "./palette.ts";
import type { State } from "./state.ts";
import { show } from "./tokens.ts";
import { TokenText } from "./tokentext.ts";
import { Latest, each } from "./work.ts";

const STRONGEST = 20;
const LINKS_EACH = 5;

interface Seen {
  places: number[];
  weights: number[];
  all: number[] | null;
}

export class TextView implements Shown {
  readonly element: HTMLElement;
  private readonly app: App;
  /** What asks and what answers; one and the same text where a sequence attends to itself. */
  private readonly queries: TokenText | null = null;
  private readonly keys: TokenText | null = null;
  private readonly names: { query: string[]; key: string[] } = { query: [], key: [] };
  private readonly side = make("aside", "panel");
  private readonly latest: Latest;
  private readonly linking: Latest;

  constructor(app: App) {
    this.app = app;
    this.latest = new Latest(app.work);
    this.linking = new Latest(app.work);
    const { words } = app;
    const map = mapOf(app);
    const [query, key] = [tokensOf(app, map, "query"), tokensOf(app, map, "key")];
    const texts: HTMLElement[] = [];
    if (query && key) {
      this.names = { query, key };
      const text = (tokens: string[], label: string, direction: State["direction"] | null): TokenText => {
        const made = new TokenText(tokens, label, {
          choose: (token, lengthen) => this.choose(token, lengthen, direction ?? app.state.direction),
          clear: () => app.go({ token: null, end: null }),
        });
        texts.push(make("section", "reading", direction && make("h2", {}, label), made.element));
        return made;
      };
      if (map.kind !== "cross" && map.query_tokens === map.key_tokens) {
        this.queries = this.keys = text(query, words.text.both, null);
      } else {
        this.keys = text(key, words.text.keys, "to");
        this.queries = text(query, words.text.queries, "from");
      }
    } else texts.push(make("p", "hint", words.text.noTokens));
    this.element = make("section", "look text", this.tools(),
      make("div", "desk", make("div", "texts", ...texts), this.side));
    void this.refresh();
  }

  private tools(): HTMLElement {
    const { app } = this;
    const { words, state } = app;
    return make("div", "toolbar", chooseHead(app),
      choice(words.text.direction, words.text.directions, state.direction, (direction) => app.go({ direction })),
      choice(words.map.scale, words.map.scales, state.scale, (scale) => app.go({ scale })),
      app.target.can.includes("run") && make("button", {
        type: "button", className: "plain", onclick: () => anotherText(app), attributes: { "data-keep": "another" },
      }, words.text.another));
  }

  private choose(token: number, lengthen: boolean, direction: State["direction"]): void {
    const { state } = this.app;
    if (lengthen && state.token !== null && direction === state.direction) this.app.go({ end: token }, true);
    else this.app.go({ token, end: null, direction }, state.token !== null);
  }

  private async ask(token: number, top: number, signal: AbortSignal): Promise<Seen> {
    const { app } = this;
    const { head, direction } = app.state;
    const map = mapOf(app).id;
    if (direction === "from") {
      const { keys, weights, row } = await answer<QueryAnswer>(paths.query(map, head, token, top), signal);
      return { places: keys, weights, all: row };
    }
    const { queries, weights, column } = await answer<KeyAnswer>(paths.key(map, head, token, top), signal);
    return { places: queries, weights, all: column };
  }

  private async refresh(): Promise<void> {
    const { app } = this;
    const { state, words } = app;
    const { token, end, direction } = state;
    if (!this.queries || !this.keys) return;
    const [asking, answering] = direction === "from" ? [this.queries, this.keys] : [this.keys, this.queries];
    if (asking !== answering) {
      asking.colour(null);
      answering.choose(null);
    }
    asking.choose(token, end);
    this.linking.stop();
    if (token === null) return this.overall();
    const label = direction === "from" ? words.work.query(token) : words.work.key(token);
    const found = await this.latest.run(label, (signal) => this.ask(end ?? token, STRONGEST, signal));
    if (!found) return;
    this.colour(answering, found);
    this.list(end ?? token, found);
    if (end !== null && end !== token) await this.links(token, end);
  }

  private colour(text: TokenText, { places, weights, all }: Seen): void {
    const size = this.app.state.direction === "from" ? this.names.key.length : this.names.query.length;
    const best = Math.max(...weights, 1e-12);
    const shades = new Float32Array(size);
    if (all) all.forEach((weight, place) => { shades[place] = shade(weight, best, this.app.state.scale); });
    else places.forEach((place, rank) => { shades[place] = shade(weights[rank]!, best, this.app.state.scale); });
    text.colour(shades);
  }

  private list(token: number, { places, weights }: Seen): void {
    const { words, state } = this.app;
    const { from: own, to: other } = this.ends();
    const best = Math.max(...weights, 1e-12);
    this.side.replaceChildren(make("section", "card",
      make("h2", {}, words.text.chosen(show(own[token] ?? ""), token)),
      make("p", "hint", words.text.directions[state.direction]),
      make("ol", "weights", ...places.map((place, rank) =>
        weighed(`“${show(other[place] ?? "")}”`, weights[rank]!, best, figure(weights[rank]!), () => {
          if (this.queries === this.keys) this.choose(place, false, state.direction);
          else this.choose(place, false, state.direction === "from" ? "to" : "from");
        })))));
  }

  /** The tokens that the chosen one is of, and those it is linked with. */
  private ends(): { from: string[]; to: string[] } {
    const { query, key } = this.names;
    return this.app.state.direction === "from" ? { from: query, to: key } : { from: key, to: query };
  }

  /** Without a chosen token: what each receives. */
  private async overall(): Promise<void> {
    const { app } = this;
    const { words, state } = app;
    const hints = [words.text.received, words.text.hint].map((hint) => make("p", "hint", hint));
    this.side.replaceChildren(make("section", "card", ...hints));
    if (this.queries !== this.keys) this.queries?.colour(null);
    const found = await this.latest.run(words.work.received, (signal) =>
      answer<ReceivedAnswer>(paths.received(mapOf(app).id, state.head), signal));
    if (!found) return;
    const each = found.cells_per_entry ?? 1;
    const best = found.received.reduce((most, weight) => Math.max(most, weight), 0);
    this.keys?.colour(Float32Array.from(this.names.key, (_, key) =>
      shade(found.received[Math.floor(key / each)] ?? 0, best, state.scale)));
  }

  private async links(token: number, end: number): Promise<void> {
    const { words } = this.app;
    const [first, last] = [Math.min(token, end), Math.max(token, end)];
    const all = last - first + 1;
    const span = Array.from({ length: Math.min(all, MOST_FROM) }, (_, place) => first + place);
    const links: Link[] = [];
    const done = await this.linking.run(words.work.links, async (signal) => {
      await each(span, 3, signal, async (from) => {
        const { places, weights } = await this.ask(from, LINKS_EACH, signal);
        places.forEach((to, rank) => links.push({ from, to, weight: weights[rank]! }));
      });
      return true;
    });
    if (!done || !links.length) return;
    this.side.querySelector(".linked")?.remove();
    this.side.prepend(make("section", "card linked", make("h2", {}, words.text.links),
      make("p", "hint", all > MOST_FROM ? words.text.linksCut(MOST_FROM, all) : words.text.linksHint),
      drawLinks(links, this.ends(), words.text.links, (to) => this.keys?.reveal(to))));
  }

  update(before: State): void {
    const { state } = this.app;
    if (before.direction !== state.direction || before.scale !== state.scale) {
      this.element.querySelector(".toolbar")?.replaceWith(this.tools());
    }
    void this.refresh();
  }

  key(event: KeyboardEvent): boolean {
    return stepHead(this.app, event.key);
  }

  close(): void {
    this.latest.stop();
    this.linking.stop();
    this.queries?.close();
    this.keys?.close();
  }
}

/** A dialogue that runs the model on another text. */
export function anotherText(app: App): void {
  const { words } = app;
  const box = make("textarea", { rows: 8, required: true, attributes: { "aria-label": words.text.anotherTitle } });
  const close = (): void => dialog.close();
  const form = make("form", { method: "dialog", onsubmit: () => void app.run(box.value) },
    make("h2", {}, words.text.anotherTitle), box,
    make("div", "between",
      make("button", { type: "button", className: "plain", onclick: close }, words.close),
      make("button", { type: "submit", className: "main" }, words.text.run)));
  const dialog: HTMLDialogElement = make("dialog", {
    attributes: { "aria-label": words.text.anotherTitle }, onclose: () => dialog.remove(),
  }, form);
  document.body.append(dialog);
  dialog.showModal();
}
