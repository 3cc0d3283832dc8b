// The state of the page and the actions of the views. The page is rendered after every change.

import { useLayoutEffect } from "preact/hooks";

import { answer, paths } from "../api/client.ts";
import { type Label, PendingRequests, begin, end } from "../api/pending_requests.ts";
import type { MapInfo, Target } from "../api/types.ts";
import type { Theme } from "../shared/palette.ts";
import { LANGUAGES, type Language, type Words, preferred } from "../shared/translations.ts";
import { show } from "../text/token_spelling.ts";
import { type Head, type State, VIEWS, type View, fit, read, write } from "./url_state.ts";

export type ThemeChoice = "auto" | Theme;

/** Handlers of the current view for keys, and before another view replaces it. */
export interface ViewHandlers {
  /** Handle a key; return false if it is not used. */
  key?(event: KeyboardEvent): boolean;
  /** Write changes that are not in the URL yet to the state. */
  note?(): void;
}

const stored = (name: string): string | null => {
  try {
    return window.localStorage.getItem(`regard.${name}`);
  } catch {
    return null;
  }
};
const store = (name: string, value: string): void => {
  try {
    window.localStorage.setItem(`regard.${name}`, value);
  } catch {
    // the browser does not allow storage
  }
};

const NOTHING: Target = { kind: "capture", title: "", version: "", tokens: {}, maps: [], image: null, can: [] };
const NOTE_EVERY = 320; // milliseconds: browsers limit how often the URL may be changed

export class Store {
  target = NOTHING;
  state: State = read(window.location.hash);
  /** Number of times that the URL set the view. */
  arrivals = 0;
  handlers: ViewHandlers = {};
  language: Language =
    (["en", "zh"] as const).find((name) => name === stored("language")) ?? preferred(navigator.languages);
  themeChoice: ThemeChoice = (["light", "dark"] as const).find((name) => name === stored("theme")) ?? "auto";
  /** Whether the page explains mechanisms, at explain.html, instead of showing maps. */
  readonly explains: boolean;
  readonly requests = new PendingRequests();
  title = "";
  helping = false;
  private running = new AbortController();
  private readonly dark = window.matchMedia("(prefers-color-scheme: dark)");
  private drawing = false;
  private stale = false;
  private noting = 0;
  private noted = 0;
  private readonly draw: () => void;

  constructor(explains: boolean, draw: () => void) {
    [this.explains, this.draw] = [explains, draw];
    this.dark.addEventListener("change", () => this.changed());
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
    label: Label,
    task: (signal: AbortSignal) => Promise<T>,
    control?: AbortController,
  ): Promise<T | undefined> {
    return this.requests.run(label, task, this.words.unreachable, control);
  }

  async loadTarget(): Promise<void> {
    const target = await this.request(this.words.loading, (signal) => answer<Target>(paths.target, signal));
    if (target) this.show(target);
  }

  /** Run the model on another text and show it; false if it failed or was cancelled. */
  async run(text: string): Promise<boolean> {
    this.running.abort();
    this.running = new AbortController();
    const task = (signal: AbortSignal): Promise<Target> => answer<Target>(paths.run, signal, { text });
    const target = await this.request(this.words.work.run, task, this.running);
    if (target) this.show(target);
    return target !== undefined;
  }

  private show(target: Target): void {
    this.target = target;
    this.title = target.title;
    this.state = this.sound(this.noting ? this.state : read(window.location.hash));
    this.changed();
  }

  views(): View[] {
    return VIEWS.filter((view) => this.target.can.includes(view));
  }

  /** The nearest valid state of this target. */
  sound(state: State): State {
    const views = this.views();
    return fit({ ...state, view: views.includes(state.view) ? state.view : (views[0] ?? "map") }, this.target.maps);
  }

  /** Change the state. Adds an entry to the browser's history unless `quiet`. */
  go(changes: Partial<State>, quiet = false): void {
    if (!quiet) this.handlers.note?.();
    const before = this.state;
    this.state = this.sound({ ...before, ...changes });
    const address = write(this.state);
    if (address === write(before)) return;
    if (quiet) this.note();
    else {
      this.stopNoting();
      window.history.replaceState(null, "", write(before));
      window.history.pushState(null, "", address);
    }
    this.follow(before);
  }

  /** Handle a URL change by the browser's navigation or a bookmark. */
  arrive(): void {
    const before = this.state;
    this.stopNoting();
    this.state = this.sound(read(window.location.hash));
    if (String(before.sight) !== String(this.state.sight)) this.arrivals += 1;
    this.follow(before);
  }

  private follow(before: State): void {
    this.changed();
    if (before.view !== this.state.view) window.scrollTo(0, 0);
  }

  /** Schedule an update of the URL. */
  private note(): void {
    this.stopNoting();
    begin(this, "address");
    const wait = Math.max(0, this.noted + NOTE_EVERY - performance.now());
    this.noting = window.setTimeout(() => {
      this.noted = performance.now();
      window.history.replaceState(null, "", write(this.state));
      this.stopNoting();
    }, wait);
  }

  private stopNoting(): void {
    window.clearTimeout(this.noting);
    this.noting = 0;
    end(this);
  }
}

/** Handle keys while a component is shown. The handlers are replaced when `inputs` change. */
export function useHandlers(app: Store, inputs: readonly unknown[], handlers: ViewHandlers): void {
  useLayoutEffect(() => {
    app.handlers = handlers;
    return () => {
      app.handlers = {};
    };
  }, inputs);
}

export function mapOf(app: Store): MapInfo {
  return app.target.maps[app.state.map ?? 0]!;
}

export function tokensOf(app: Store, map: MapInfo, side: "query" | "key"): string[] | null {
  const table = side === "query" ? map.query_tokens : map.key_tokens;
  return table === null ? null : (app.target.tokens[table] ?? null);
}

/** A token in quotes, or the number of its position. */
export function named(tokens: readonly string[] | null, position: number): string {
  const token = tokens?.[position];
  return token === undefined ? String(position) : `“${show(token)}”`;
}

/** The options of the shades of a map, as a query string. */
export function pictureOptions(app: Store): string {
  const { reduce, scale } = app.state;
  return new URLSearchParams({ reduce, scale, v: app.target.version }).toString();
}

export function headName(app: Store, head: Head): string {
  return head === "mean" ? app.words.map.mean : String(head);
}
