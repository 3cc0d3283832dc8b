// The view Translate: a sentence, what the beam search found, and which words were read to write which.

import type { App, Shown } from "./app.ts";
import { type Hypothesis, answer, paths } from "./api.ts";
import { choice, select } from "./controls.ts";
import { figure, make } from "./dom.ts";
import { Matrix } from "./matrix.ts";
import type { Scale } from "./palette.ts";
import type { State } from "./state.ts";
import { show } from "./tokens.ts";
import { Latest } from "./work.ts";

const BEAMS = [1, 3, 5, 10];

export class TranslateView implements Shown {
  readonly element: HTMLElement;
  private readonly app: App;
  private readonly box: HTMLTextAreaElement;
  private readonly results = make("div", "results");
  private readonly detail = make("div", "detail");
  private readonly latest: Latest;
  private beam = 5;
  private scale: Scale = "linear";
  private hypotheses: Hypothesis[] = [];
  private shown = 0;
  private matrix: Matrix | null = null;

  constructor(app: App) {
    this.app = app;
    this.latest = new Latest(app.work);
    const { words, state } = app;
    this.box = make("textarea", {
      rows: 2, value: state.say, placeholder: words.translate.placeholder, maxLength: 2000,
      onkeydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.submit();
        }
      },
    });
    const form = make("form", { className: "say", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      make("label", "field wide", make("span", {}, words.translate.label), this.box),
      make("div", "between",
        select(words.translate.beam, BEAMS.map((beam) => [String(beam), String(beam)]), String(this.beam), (beam) => {
          this.beam = Number(beam);
        }),
        choice(words.map.scale, words.map.scales, this.scale, (scale) => { this.scale = scale; this.show(); }),
        make("button", { type: "submit", className: "main" }, words.translate.go)));
    this.element = make("section", "look translate", form, this.results, this.detail);
    if (state.say) void this.translate(state.say);
  }

  private submit(): void {
    const text = this.box.value.trim();
    const { app } = this;
    if (!text) app.work.say(app.words.translate.empty, true);
    else if (text === app.state.say) void this.translate(text);
    else app.go({ say: text });
  }

  private async translate(text: string): Promise<void> {
    const { words } = this.app;
    const found = await this.latest.run(words.work.translation, (signal) =>
      answer<{ hypotheses: Hypothesis[] }>(paths.translate, signal, { text, beam: this.beam, n_best: this.beam }));
    if (!found) return;
    this.hypotheses = found.hypotheses;
    this.shown = 0;
    this.list();
  }

  private list(): void {
    const { words, target: { can } } = this.app;
    const name = "hypothesis";
    const rows = this.hypotheses.map((one, place) => make("li", {}, make("label", "hypothesis",
      make("input", {
        type: "radio", name, checked: place === this.shown,
        onchange: () => { this.shown = place; this.show(); },
      }),
      make("span", "written", one.text || words.translate.nothing),
      make("span", "number", `${words.translate.score} ${one.score.toFixed(2).replace("-", "−")}`))));
    const maps = make("button", {
      type: "button", className: "plain", onclick: () => void this.look(),
    }, words.translate.maps);
    this.results.replaceChildren(
      make("header", "between", make("h2", {}, words.translate.hypotheses), can.includes("run") && maps),
      make("ol", "hypotheses", ...rows));
    this.show();
  }

  /** Every map behind the best translation. */
  private async look(): Promise<void> {
    const { app } = this;
    if (await app.run(app.state.say)) app.go({ view: "map", map: null, token: null, end: null, sight: null });
  }

  private show(): void {
    const one = this.hypotheses[this.shown];
    this.matrix?.close();
    this.matrix = null;
    if (!one?.weights.length) return this.detail.replaceChildren(); // a model of fixed context aligns nothing
    const { words, theme } = this.app;
    const told = make("p", { className: "hint told", attributes: { "aria-live": "polite" } }, "\u00a0");
    const look = { theme, scale: this.scale };
    this.matrix = new Matrix(words.translate.matrixLabel, one.target, one.source, one.weights, look, (cell) => {
      if (!cell) told.textContent = "\u00a0";
      else {
        const row = one.weights[cell.row]!;
        const column = cell.column >= 0 ? cell.column : row.indexOf(Math.max(...row));
        const [written, read] = [one.target[cell.row]!, one.source[column]!];
        told.textContent = words.translate.cell(show(written), show(read), figure(row[column]!));
      }
    });
    this.detail.replaceChildren(
      make("section", "card", make("h2", {}, words.translate.words), make("p", "hint", words.translate.wordsHint),
        this.wordByWord(one)),
      make("section", "card", make("h2", {}, words.translate.matrix), told, this.matrix.element));
  }

  /** Both sentences; a word that is pointed at lights up with those it is linked with. */
  private wordByWord(one: Hypothesis): HTMLElement {
    const { words } = this.app;
    const line = (texts: string[], side: 0 | 1): HTMLButtonElement[] => texts.map((text, place) =>
      make("button", {
        type: "button", className: "word", onpointerenter: () => light(side, place), onfocus: () => light(side, place),
        onpointerleave: () => light(null, 0), onblur: () => light(null, 0), onclick: () => light(side, place),
      }, text));
    const lines = [line(one.source_words, 0), line(one.target_words, 1)] as const;
    const light = (side: 0 | 1 | null, place: number): void => {
      for (const word of lines.flat()) word.classList.remove("lit", "linked");
      if (side === null) return;
      lines[side][place]!.classList.add("lit");
      const other = side === 0 ? 1 : 0;
      for (const link of one.links) if (link[side] === place) lines[other][link[other]]?.classList.add("linked");
    };
    return make("div", { className: "sentences", attributes: { role: "group", "aria-label": words.translate.words } },
      make("p", {}, ...lines[0]), make("p", {}, ...lines[1]));
  }

  update(before: State): void {
    const { state } = this.app;
    if (before.say !== state.say) {
      this.box.value = state.say;
      if (state.say) void this.translate(state.say);
    }
  }

  close(): void {
    this.latest.stop();
    this.matrix?.close();
  }
}
