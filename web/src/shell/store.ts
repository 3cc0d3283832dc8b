// The state of the page and the actions of the views. The page is rendered after every change.

import { useLayoutEffect } from "preact/hooks";

import { answer, messageFor, paths } from "../api/client.ts";
import { PendingRequests, begin, end } from "../api/pending_requests.ts";
import type { RecordedAnswers } from "../api/recorded_answers.ts";
import type { MapInfo, Target } from "../api/types.ts";
import { Generator } from "../generate/generator.ts";
import type { Theme } from "../shared/palette.ts";
import { LANGUAGES, type Language, type WorkLabel, type Words, preferred } from "../shared/translations.ts";
import { EXPLAIN, type Embedding } from "./embedding.ts";
import { store, stored } from "./preferences.ts";
import { type Head, START, type State, VIEWS, type View, fit, landing, read, write } from "./url_state.ts";

export type ThemeChoice = "auto" | Theme;

/** Handlers of the current view for keys, and before another view replaces it. */
interface ViewHandlers {
  /** Handle a key; return false if it is not used. */
  key?(event: KeyboardEvent): boolean;
  /** Write changes that are not in the URL yet to the state. */
  note?(): void;
}

const NOTHING: Target = {
  kind: "capture",
  title: "",
  version: "",
  tokens: {},
  maps: [],
  image: null,
  can: [],
  text: null,
};
const WRITE_ADDRESS_EVERY = 320; // milliseconds: browsers limit how often the URL may be changed

export class Store {
  target = NOTHING;
  state: State;
  /** Number of times that the URL set the view. */
  viewsFromAddress = 0;
  handlers: ViewHandlers = {};
  language: Language =
    (["en", "zh"] as const).find((name) => name === stored("language")) ?? preferred(navigator.languages);
  themeChoice: ThemeChoice = (["light", "dark"] as const).find((name) => name === stored("theme")) ?? "auto";
  /** Whether the page explains mechanisms, at explain.html, instead of showing maps. */
  explains: boolean;
  readonly requests = new PendingRequests();
  readonly generator = new Generator(this);
  title = "";
  helping = false;
  private running = new AbortController();
  private readonly dark = window.matchMedia("(prefers-color-scheme: dark)");
  private drawing = false;
  private stale = false;
  private addressTimer = 0;
  private addressWritten = 0;
  /** Scroll position of each view when it was left. */
  private readonly scrolled = new Map<string, number>();
  readonly embedding: Embedding;
  private readonly draw: () => void;

  constructor(embedding: Embedding, draw: () => void) {
    [this.embedding, this.draw] = [embedding, draw];
    this.explains = embedding.chart || embedding.address.explains;
    this.state = this.explains ? START : read(this.embedding.address.hash);
    this.dark.addEventListener("change", () => this.changed());
  }

  get recorded(): RecordedAnswers | null {
    return this.embedding.recorded;
  }

  /** Whether a head can be opened. A saved page has only some. */
  opens(map: number, head: Head): boolean {
    return this.recorded?.has(map, head) ?? true;
  }

  get words(): Words {
    return LANGUAGES[this.language];
  }

  /** A number in the language of the page. */
  count(number: number): string {
    return number.toLocaleString(this.language);
  }

  get theme(): Theme {
    return this.themeChoice === "auto" ? (this.dark.matches ? "dark" : "light") : this.themeChoice;
  }

  /** Draw the page. */
  changed(): void {
    const { dataset } = document.documentElement;
    dataset["theme"] = this.theme;
    document.documentElement.lang = this.language;
    document.title = this.title ? `${this.title} · regard` : "regard";
    this.stale = true;
    if (this.drawing) return; // changed while rendering: render once more
    this.drawing = true;
    while (this.stale) {
      this.stale = false;
      this.draw();
    }
    this.drawing = false;
  }

  speak(language: Language): void {
    this.language = language;
    store("language", language);
    this.requests.show(null);
    this.changed();
  }

  choose(theme: ThemeChoice): void {
    this.themeChoice = theme;
    store("theme", theme);
    this.changed();
  }

  /** Show or hide the list of keys. */
  help(shown: boolean): void {
    this.helping = shown;
    this.changed();
  }

  entitle(title: string): void {
    if (title === this.title) return;
    this.title = title;
    this.changed();
  }

  request<T>(
    label: WorkLabel,
    task: (signal: AbortSignal) => Promise<T>,
    control?: AbortController,
  ): Promise<T | undefined> {
    const shown = { toString: () => label(this.words) };
    return this.requests.run(shown, task, (error) => messageFor(error, this.words), control);
  }

  async loadTarget(): Promise<void> {
    const target = await this.request(
      ({ loading }) => loading,
      (signal) => answer<Target>(paths.target, signal),
    );
    if (!target) return;
    this.show(target);
    const { say, view } = this.state;
    const follows = target.can.includes("translate") && target.maps.length > 0 && view !== "translate";
    if (follows && say && target.text !== say && !this.explains) await this.run(say); // another tab ran another text
  }

  /** Run the model on another text and show it; false if it failed or was cancelled. */
  async run(text: string): Promise<boolean> {
    this.running.abort();
    this.running = new AbortController();
    const task = (signal: AbortSignal) => answer<Target>(paths.run, signal, { text });
    const target = await this.request(({ work }) => work.run, task, this.running);
    if (!target) return false;
    this.show(target);
    if (text !== this.state.say && (target.can.includes("translate") || target.can.includes("generate"))) {
      this.go({ say: text, branches: null, at: null }, true);
    }
    return true;
  }

  private show(target: Target): void {
    const first = this.target === NOTHING;
    this.target = target;
    const requested = this.explains || this.addressTimer ? this.state : read(this.embedding.address.hash);
    const landed = first && (this.explains || this.embedding.address.hash.length < 2);
    this.state = this.nearestValid(landed ? { ...requested, ...landing(target) } : requested);
    if (!this.explains) this.title = target.title;
    if (!this.views().length && !this.explains) this.visit(EXPLAIN, true);
    this.changed();
  }

  /** Show the maps or Explain, which have different paths, without loading the page again. */
  visit(address: string, instead = false): void {
    this.handlers.note?.();
    if (instead) this.embedding.address.replace(address);
    else {
      if (!this.explains) this.embedding.address.replace(write(this.state));
      this.embedding.address.push(address);
    }
    this.readAddress();
  }

  /** The address of a view, or of Explain with the model of the target. */
  address(view: View | "explain"): string {
    if (view === "explain") return EXPLAIN;
    return `${this.explains ? "./" : ""}${write(this.nearestValid({ ...this.state, view }))}`;
  }

  views(): View[] {
    return VIEWS.filter((view) => this.target.can.includes(view));
  }

  /** The nearest valid state of this target. */
  nearestValid(state: State): State {
    const views = this.views();
    const near = fit(
      { ...state, view: views.includes(state.view) ? state.view : (views[0] ?? "map") },
      this.target.maps,
    );
    const whole = (near.map === null && near.view === "map") || this.opens(near.map ?? 0, near.head);
    return whole ? near : { ...near, ...this.recorded?.nearest(near.map ?? 0) };
  }

  /** Change the state. Adds an entry to the browser's history unless `quiet`. */
  go(changes: Partial<State>, quiet = false): void {
    if (!quiet) this.handlers.note?.();
    const [before, shown] = [this.state, this.shown];
    this.state = this.nearestValid({ ...before, ...changes });
    const address = write(this.state);
    if (this.explains || address === write(before)) return;
    if (quiet) this.scheduleAddress();
    else {
      this.cancelAddressTimer();
      this.embedding.address.replace(write(before));
      this.embedding.address.push(address);
    }
    this.follow(shown);
  }

  /** Handle a URL change by the browser's navigation or a bookmark. */
  readAddress(): void {
    const [before, shown] = [this.state, this.shown];
    this.cancelAddressTimer();
    this.explains = this.embedding.address.explains;
    if (!this.explains) {
      this.state = this.nearestValid(read(this.embedding.address.hash));
      this.title = this.target.title;
    }
    if (String(before.sight) !== String(this.state.sight)) this.viewsFromAddress += 1;
    this.follow(shown);
  }

  private get shown(): string {
    return this.explains ? EXPLAIN : this.state.view;
  }

  /** Draw the page after a change of the state. A view is scrolled as it was when it was left. */
  private follow(shown: string): void {
    const moves = shown !== this.shown;
    if (moves) this.scrolled.set(shown, window.scrollY);
    this.changed();
    if (moves) window.scrollTo(0, this.scrolled.get(this.shown) ?? 0);
  }

  /** Schedule an update of the URL. */
  private scheduleAddress(): void {
    this.cancelAddressTimer();
    begin(this, "address");
    const wait = Math.max(0, this.addressWritten + WRITE_ADDRESS_EVERY - performance.now());
    this.addressTimer = window.setTimeout(() => {
      this.addressWritten = performance.now();
      this.embedding.address.replace(write(this.state));
      this.cancelAddressTimer();
    }, wait);
  }

  private cancelAddressTimer(): void {
    window.clearTimeout(this.addressTimer);
    this.addressTimer = 0;
    end(this);
  }
}

/** Handle keys while a component is shown. The handlers are replaced when `inputs` change. */
export function useHandlers(app: Store, inputs: readonly unknown[], handlers: ViewHandlers): void {
  useLayoutEffect(() => {
    app.handlers = handlers;
    return () => void (app.handlers = {});
  }, inputs);
}

export function mapOf(app: Store): MapInfo {
  return app.target.maps[app.state.map ?? 0]!;
}

export function tokensOf(app: Store, map: MapInfo, side: "query" | "key"): string[] | null {
  const table = side === "query" ? map.query_tokens : map.key_tokens;
  return table === null ? null : (app.target.tokens[table] ?? null);
}

/** The options of the shades of a map, as a query string. */
export function pictureOptions(app: Store): string {
  const { reduce, scale } = app.state;
  return new URLSearchParams({ reduce, scale, v: app.target.version }).toString();
}

export function headName(app: Store, head: Head): string {
  return head === "mean" ? app.words.map.mean : String(head);
}
