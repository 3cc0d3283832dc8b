// The page: its frame, the way from the address to a view and back, language and colours.

import "./style.css";

import { begin, end } from "./ahead.ts";
import type { App, Shown } from "./app.ts";
import { type Target, answer, paths } from "./api.ts";
import { make } from "./dom.ts";
import { Grid } from "./grid.ts";
import { ImageView } from "./image.ts";
import { MapView } from "./map.ts";
import type { Theme } from "./palette.ts";
import { type State, type View, VIEWS, fit, read, write } from "./state.ts";
import { TextView } from "./text.ts";
import { TranslateView } from "./translate.ts";
import { LANGUAGES, type Language, preferred } from "./words.ts";
import { Latest, Work } from "./work.ts";

type Wish = "auto" | Theme;

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const kept = (name: string): string | null => {
  try { return window.localStorage.getItem(`regard.${name}`); } catch { return null; }
};
const keep = (name: string, value: string): void => {
  try { window.localStorage.setItem(`regard.${name}`, value); } catch { /* a browser that keeps nothing */ }
};

class Page implements App {
  target: Target = { kind: "capture", title: "", version: 0, tokens: {}, maps: [], image: null, can: [] };
  state: State = read(window.location.hash);
  private language: Language =
    (["en", "zh"] as const).find((name) => name === kept("language")) ?? preferred(navigator.languages);
  private wish: Wish = (["light", "dark"] as const).find((name) => name === kept("theme")) ?? "auto";
  readonly work = new Work(LANGUAGES[this.language]);
  private readonly texts = new Latest(this.work);
  private shown: Shown | null = null;
  private noting = 0;
  private noted = 0;
  private readonly root = document.getElementById("page")!;
  private readonly main = make("main", { id: "view", tabIndex: -1 });

  get words() { return LANGUAGES[this.language]; }
  get theme(): Theme { return this.wish === "auto" ? (dark.matches ? "dark" : "light") : this.wish; }

  async start(): Promise<void> {
    dark.addEventListener("change", () => this.rebuild());
    window.addEventListener("hashchange", () => this.arrive());
    window.addEventListener("keydown", (event) => this.pressed(event));
    this.rebuild();
    const target = await this.work.run(this.words.loading, (signal) => answer<Target>(paths.target, signal));
    if (target) this.load(target);
  }

  async run(text: string): Promise<boolean> {
    const task = (signal: AbortSignal): Promise<Target> => answer<Target>(paths.run, signal, { text });
    const target = await this.texts.run(this.words.work.run, task);
    if (target) this.load(target);
    return target !== undefined;
  }

  private load(target: Target): void {
    this.target = target;
    this.state = this.sound(this.noting ? this.state : read(window.location.hash));
    this.rebuild();
  }

  private views(): View[] {
    return VIEWS.filter((view) => this.target.can.includes(view));
  }

  /** The nearest state that this target has. */
  private sound(state: State): State {
    const views = this.views();
    return fit({ ...state, view: views.includes(state.view) ? state.view : (views[0] ?? "map") }, this.target.maps);
  }

  go(changes: Partial<State>, quiet = false): void {
    if (!quiet) this.shown?.note?.();
    const before = this.state;
    this.state = this.sound({ ...before, ...changes });
    const address = write(this.state);
    if (address === write(before)) return;
    if (quiet) this.note();
    else {
      this.forget();
      window.history.replaceState(null, "", write(before));
      window.history.pushState(null, "", address);
    }
    this.follow(before);
  }

  /** Put the address right, a few times a second at most: browsers refuse more. */
  private note(): void {
    this.forget();
    begin(this, "address");
    this.noting = window.setTimeout(() => {
      this.noted = performance.now();
      window.history.replaceState(null, "", write(this.state));
      this.forget();
    }, Math.max(0, this.noted + 320 - performance.now()));
  }

  private forget(): void {
    window.clearTimeout(this.noting);
    this.noting = 0;
    end(this);
  }

  /** The address was changed from outside: the browser's arrows, or a bookmark. */
  private arrive(): void {
    const before = this.state;
    this.forget();
    this.state = this.sound(read(window.location.hash));
    this.follow(before, true);
  }

  private follow(before: State, arrived = false): void {
    const { state } = this;
    const another = before.view !== state.view || before.map !== state.map || before.head !== state.head;
    if (another || (arrived && String(before.sight) !== String(state.sight))) this.rebuild(before.view !== state.view);
    else this.shown?.update(before);
  }

  private rebuild(fresh = false): void {
    const focused = document.activeElement?.getAttribute("data-keep") ?? null;
    this.shown?.close();
    document.documentElement.dataset["theme"] = this.theme;
    document.documentElement.lang = this.language;
    document.title = this.target.title ? `${this.target.title} · regard` : "regard";
    this.work.speak(this.words);
    this.shown = this.view();
    this.main.replaceChildren(...(this.shown ? [this.shown.element] : []));
    this.root.replaceChildren(this.header(), this.main, this.work.element);
    if (fresh) window.scrollTo(0, 0);
    if (!focused) return;
    this.root.querySelector<HTMLElement>(`[data-keep="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  private view(): Shown | null {
    const { view, map } = this.state;
    if (!this.target.can.length) return null;
    if (view === "translate") return new TranslateView(this);
    if (view === "image" && this.target.image && this.target.maps.length) return new ImageView(this);
    if (view === "text" && this.target.maps.length) return new TextView(this);
    return map === null || !this.target.maps.length ? new Grid(this) : new MapView(this);
  }

  private header(): HTMLElement {
    const { words, state } = this;
    const tabs = this.views().map((view) => make("a", {
      href: write(this.sound({ ...state, view })),
      attributes: { "aria-current": view === state.view ? "page" : null, "data-keep": `view ${view}` },
    }, words.views[view]));
    const languages = (Object.keys(LANGUAGES) as Language[])
      .map((name): [Language, string] => [name, LANGUAGES[name].language]);
    const themes = Object.entries(words.theme) as [Wish, string][];
    return make("header", "top",
      make("a", {
        className: "skip", href: "#view",
        onclick: (event) => { event.preventDefault(); this.main.focus(); },
      }, words.skip),
      make("div", "brand", make("b", {}, "regard"), make("span", { title: this.target.title }, this.target.title)),
      make("nav", { attributes: { "aria-label": words.navigation } }, ...tabs, make("a", { href: "explain.html" }, words.explain.title)),
      make("div", "switches",
        menu(words.languageLabel, languages, this.language, (name) => {
          this.language = name;
          keep("language", name);
          this.rebuild();
        }),
        menu(words.themeLabel, themes, this.wish, (wish) => {
          this.wish = wish;
          keep("theme", wish);
          this.rebuild();
        }),
        make("button", {
          type: "button", className: "plain", onclick: () => this.help(),
          attributes: { "data-keep": "help", "aria-keyshortcuts": "?" },
        }, `? ${words.help}`)));
  }

  private help(): void {
    if (document.querySelector("dialog[open]")) return;
    const { words } = this;
    const rows = words.keys.rows.map(([key, what]) =>
      make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)));
    const close = (): void => dialog.close();
    const dialog: HTMLDialogElement = make("dialog", {
      className: "help", attributes: { "aria-label": words.keys.title }, onclose: () => dialog.remove(),
    }, make("h2", {}, words.keys.title), make("dl", {}, ...rows),
    make("button", { type: "button", className: "main", onclick: close, autofocus: true }, words.close));
    document.body.append(dialog);
    dialog.showModal();
  }

  private pressed(event: KeyboardEvent): void {
    const typing = event.target instanceof Element && event.target.matches("textarea, select, input[type=text]");
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && this.work.busy) this.work.cancel();
    else if (typing) return;
    else if (event.key === "?") this.help();
    else if (/^[1-4]$/.test(event.key)) {
      const view = VIEWS[Number(event.key) - 1]!;
      if (!this.views().includes(view)) return;
      this.go({ view });
    } else if (!this.shown?.key?.(event)) return;
    event.preventDefault();
  }
}

/** A list from which one is chosen, without a label of its own to be seen. */
function menu<T extends string>(
  label: string, options: [T, string][], chosen: T, choose: (value: T) => void,
): HTMLElement {
  const attributes = { "aria-label": label, "data-keep": label };
  const box = make("select", { onchange: () => choose(box.value as T), attributes },
    ...options.map(([value, name]) => make("option", { value, selected: value === chosen }, name)));
  return box;
}

void new Page().start();
