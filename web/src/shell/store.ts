// The state of the page, and what views do with it. After every change the page is drawn again.

import { useLayoutEffect } from "preact/hooks";

import { answer, paths } from "../api/client.ts";
import { type Label, PendingRequests, begin, end } from "../api/pending_requests.ts";
import type { MapInfo, Target } from "../api/types.ts";
import type { Theme } from "../shared/palette.ts";
import { LANGUAGES, type Language, type Words, preferred } from "../shared/translations.ts";
import { show } from "../text/token_spelling.ts";
import { type Head, type State, VIEWS, type View, fit, read, write } from "./url_state.ts";

export type ThemeChoice = "auto" | Theme;

/** What the view that is shown does with keys, and before another one replaces it. */
export interface ViewHandlers {
  /** Handle a key; false if it means nothing here. */
  key?(event: KeyboardEvent): boolean;
  /** Write what the address does not tell yet into the state. */
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
    // a browser that stores nothing
  }
};

const NOTHING: Target = { kind: "capture", title: "", version: "", tokens: {}, maps: [], image: null, can: [] };
const NOTE_EVERY = 320; // milliseconds: browsers refuse to write the address more often

export class Store {
  target = NOTHING;
  state: State = read(window.location.hash);
  /** Counts how often the place on the map was set by the address. */
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
    if (this.drawing) return; // a change while the page is drawn: it is drawn once more
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

  /** Run the model on another text and show that; false if it failed or was cancelled. */
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

  /** The nearest state that this target has. */
  sound(state: State): State {
    const views = this.views();
    return fit({ ...state, view: views.includes(state.view) ? state.view : (views[0] ?? "map") }, this.target.maps);
  }

  /** Change the state. It becomes a step of the browser's history unless `quiet`. */
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

  /** The address was changed from outside: by the browser's arrows or a bookmark. */
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

  /** Write the address soon. */
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

/** What the shades of a map depend on, as a query string. */
export function pictureOptions(app: Store): string {
  const { reduce, scale } = app.state;
  return new URLSearchParams({ reduce, scale, v: app.target.version }).toString();
}

export function headName(app: Store, head: Head): string {
  return head === "mean" ? app.words.map.mean : String(head);
}
