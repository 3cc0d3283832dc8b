// The page: its frame, the chart, the steps, and what is pointed at. Loading it touches nothing that Node lacks.

import "../style.css";
import "./explain.css";

import { answer } from "../api.ts";
import { select } from "../controls.ts";
import { draw, make } from "../dom.ts";
import type { Theme } from "../palette.ts";
import { LANGUAGES, type Language, preferred } from "../words.ts";
import { Work } from "../work.ts";
import { type Chart, type Node, gridOf, origin, see } from "./chart.ts";
import { drawing } from "./drawing.ts";
import { svg } from "./file.ts";
import { type Box, type Laid, type Shown, layout } from "./layout.ts";
import { type Cell, Panel, told } from "./panel.ts";
import { cellAt, leftOf, sizeOf } from "./picture.ts";
import { toElement } from "./shape.ts";
import { numbers, opened, ways } from "./start.ts";

type Choice = "auto" | Theme;
interface Offer { mechanisms: { name: string; text: string | null }[]; run: string | null }

const kept = (name: string): string | null => {
  try { return window.localStorage.getItem(`regard.${name}`); } catch { return null; }
};
const keep = (name: string, value: string): void => {
  try { window.localStorage.setItem(`regard.${name}`, value); } catch { /* a browser that keeps nothing */ }
};

export class Explainer {
  private readonly dark = window.matchMedia("(prefers-color-scheme: dark)");
  private language: Language = (["en", "zh"] as const).find((name) => name === kept("language")) ?? preferred(navigator.languages);
  private wish: Choice = (["light", "dark"] as const).find((name) => name === kept("theme")) ?? "auto";
  private work = new Work(LANGUAGES[this.language]);
  private offer: Offer | null = null;
  private mechanism = "";
  private text = "";
  private chart: Chart | null = null;
  private open = new Set<string>();
  private step = 1;
  private chosen: number | null = null;
  private zoom = 1;
  private laid: Laid | null = null;
  private panel: Panel | null = null;
  private drawn = 0;
  private readonly root = document.getElementById("page")!;
  private readonly stage = make("div", { className: "stage" });
  private readonly tip = make("div", { className: "tip", hidden: true, attributes: { role: "tooltip" } });

  private get words() { return LANGUAGES[this.language]; }
  private get theme(): Theme { return this.wish === "auto" ? (this.dark.matches ? "dark" : "light") : this.wish; }

  async start(): Promise<void> {
    this.dark.addEventListener("change", () => this.rebuild());
    window.addEventListener("keydown", (event) => this.pressed(event));
    this.stage.addEventListener("pointermove", (event) => this.pointed(event));
    this.stage.addEventListener("pointerleave", () => this.point(null, null, null));
    this.stage.addEventListener("click", (event) => this.clicked(event.target));
    this.stage.addEventListener("focusin", (event) => this.lit((event.target as Element).closest("[data-box]")));
    const inlined = document.getElementById("chart")?.textContent;
    if (inlined) {
      this.take(JSON.parse(inlined) as Chart);
      return;
    }
    this.rebuild();
    window.addEventListener("hashchange", () => void this.arrive());
    this.offer = (await this.work.run(this.words.loading, (signal) => answer<Offer>("api/explain", signal))) ?? null;
    await this.arrive();
  }

  /** The address says what to explain: #bahdanau?text=the+cat&step=2 */
  private async arrive(): Promise<void> {
    const [name, query] = window.location.hash.replace(/^#/, "").split(/\?(.*)/s);
    const field = new URLSearchParams(query ?? "");
    const known = this.offer?.mechanisms.map((one) => one.name) ?? [];
    const asked = known.includes(name ?? "") || (name === "run" && this.offer?.run) ? name! : known[0];
    if (!asked) return this.rebuild();
    const text = (field.get("text") ?? "").slice(0, 500);
    if (this.chart && asked === this.mechanism && text === this.text) return;
    [this.mechanism, this.text] = [asked, text];
    const path = `api/explain/${encodeURIComponent(asked)}${text ? `?${new URLSearchParams({ text })}` : ""}`;
    const chart = await this.work.run(this.words.explain.chart, (signal) => answer<Chart>(path, signal));
    if (chart) this.take({ ...chart, step: Number(field.get("step")) || 1 });
    else {
      this.chart = null;
      this.stage.replaceChildren();
      this.rebuild();
    }
  }

  private go(mechanism: string, text: string): void {
    const address = `#${mechanism}${text ? `?${new URLSearchParams({ text })}` : ""}`;
    if (window.location.hash !== address) window.location.hash = address;
  }

  private take(chart: Chart): void {
    this.chart = chart;
    this.open = opened(chart);
    this.step = Math.min(Math.max(1, chart.step ?? 1), Math.max(1, chart.steps));
    this.chosen = null;
    this.zoom = 0;
    this.rebuild();
  }

  private rebuild(): void {
    const focused = document.activeElement?.getAttribute("data-keep") ?? null;
    document.documentElement.dataset["theme"] = this.theme;
    document.documentElement.lang = this.language;
    document.title = this.chart ? `${this.chart.title} · regard` : "regard";
    this.work.speak(this.words);
    this.panel = this.chart && new Panel(this.chart, this.words, (node, cell) => this.point(this.boxOf(node.number), null, cell));
    this.root.replaceChildren(this.header(), make("main", { id: "view", className: "explain", tabIndex: -1 },
      ...(this.chart || this.offer ? [this.tools()] : []), ...(this.panel ? [make("div", "desk", this.stage, this.panel.element)] : [])),
      ...(this.offer ? [this.work.element] : []), this.tip);
    if (focused) this.root.querySelector<HTMLElement>(`[data-keep="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    void this.redraw();
  }

  private header(): HTMLElement {
    const { words } = this;
    const menu = <T extends string>(label: string, options: [T, string][], value: T, choose: (value: T) => void): HTMLElement => {
      const box = make("select", { onchange: () => choose(box.value as T), attributes: { "aria-label": label, "data-keep": label } },
        ...options.map(([one, name]) => make("option", { value: one, selected: one === value }, name)));
      return box;
    };
    const languages = (Object.keys(LANGUAGES) as Language[]).map((name): [Language, string] => [name, LANGUAGES[name].language]);
    return make("header", "top",
      make("div", "brand", make("b", {}, "regard"), make("span", {}, this.chart?.title ?? "")),
      this.offer ? make("nav", {}, make("a", { href: "./" }, words.explain.maps), make("a", { href: "#", attributes: { "aria-current": "page" } }, words.explain.title)) : null,
      make("div", "switches",
        menu(words.languageLabel, languages, this.language, (name) => { this.language = name; keep("language", name); this.rebuild(); }),
        menu(words.themeLabel, Object.entries(words.theme) as [Choice, string][], this.wish, (wish) => { this.wish = wish; keep("theme", wish); this.rebuild(); })));
  }

  private tools(): HTMLElement {
    const { words, offer, chart } = this;
    const parts: HTMLElement[] = [];
    if (offer) {
      const names = [...(offer.run ? [["run", offer.run] as [string, string]] : []), ...offer.mechanisms.map((one): [string, string] => [one.name, one.name])];
      parts.push(select(words.explain.mechanism, names, this.mechanism, (name) => this.go(name, name === "vit" ? "" : this.text)));
      const reads = offer.mechanisms.find((one) => one.name === this.mechanism)?.text;
      if (reads || (this.mechanism === "run" && chart?.tokens["P"] === undefined)) {
        const box = make("input", { type: "text", value: this.text, placeholder: reads ?? "", maxLength: 500, attributes: { "data-keep": "text" } });
        parts.push(make("form", { className: "field", onsubmit: (event) => { event.preventDefault(); this.go(this.mechanism, box.value.trim()); } },
          make("label", "field", make("span", {}, words.explain.text), box)));
      }
    }
    if (!chart) return make("div", "toolbar", ...parts);
    if (chart.steps > 1) parts.push(this.steps(chart));
    const button = (label: string, sign: string, action: () => void): HTMLElement =>
      make("button", { type: "button", className: "icon", title: label, onclick: action, attributes: { "aria-label": label, "data-keep": label } }, sign);
    parts.push(make("div", "icons",
      button(words.explain.openAll, "⊞", () => this.openAll(true)), button(words.explain.closeAll, "⊟", () => this.openAll(false)),
      button(words.map.zoomOut, "−", () => this.scale(this.zoom / 1.25)), button(words.map.zoomIn, "+", () => this.scale(this.zoom * 1.25)),
      make("button", { type: "button", className: "plain", onclick: () => void this.save(), attributes: { "data-keep": "save" } }, words.explain.save)));
    return make("div", "toolbar", ...parts);
  }

  private steps(chart: Chart): HTMLElement {
    const { words } = this;
    const named = (step: number): string => words.explain.step(step, chart.steps, chart.written[step - 1] ?? "");
    const slider = make("input", { type: "range", min: "1", max: String(chart.steps), value: String(this.step), attributes: { "data-keep": "step", "aria-valuetext": named(this.step) } });
    const line = make("span", { attributes: { "data-step": this.step } }, named(this.step));
    slider.oninput = () => {
      this.step = Number(slider.value);
      line.textContent = named(this.step);
      line.dataset["step"] = slider.value;
      slider.setAttribute("aria-valuetext", named(this.step));
      this.moved();
    };
    return make("label", "field steps", line, slider);
  }

  /** Another step: what was chosen stays chosen, in the new step. */
  private moved(): void {
    const { chart } = this;
    if (chart && this.chosen !== null) {
      const all = ways(chart);
      const same = chart.nodes.find((node) => node.time === this.step && all[node.number] === all[this.chosen!]);
      this.chosen = chart.nodes[this.chosen]!.time === null ? this.chosen : (same?.number ?? null);
    }
    void this.redraw();
  }

  private openAll(all: boolean): void {
    const { chart } = this;
    if (!chart) return;
    const every = ways(chart);
    const groups = chart.nodes.filter((node) => node.kind === "group");
    // a step opens to its parts when everything is closed: one box for all of it would say nothing
    this.open = new Set(groups.filter((node) => all || (node.time !== null && node.parent === null)).map((node) => every[node.number]!));
    void this.redraw();
  }

  private async redraw(): Promise<void> {
    const { chart } = this;
    if (!chart) return;
    const turn = ++this.drawn;
    const open = numbers(chart, this.open);
    const laid = await layout(chart, see(chart, open, this.step), open, this.language, this.words.explain.earlier);
    if (turn !== this.drawn) return; // something newer is under way
    this.laid = laid;
    const focused = this.stage.contains(document.activeElement) ? document.activeElement?.getAttribute("data-box") : null;
    const element = toElement(drawing(laid, this.theme, chart.title));
    for (const box of laid.boxes) this.ready(element.querySelector<SVGGElement>(`[data-box="${box.id}"]`)!, box);
    this.stage.replaceChildren(element);
    this.stage.dataset["boxes"] = String(laid.boxes.length);
    if (this.zoom) this.scale(this.zoom);
    else this.fit(laid);
    if (focused) this.stage.querySelector<SVGGElement>(`[data-box="${focused}"]`)?.focus();
    this.select(this.chosen, false);
  }

  /** What a box is to somebody who does not see it, and to the keyboard. */
  private ready(element: SVGGElement, box: Box): void {
    if (!box.node) return;
    const grid = box.node.value === null ? null : gridOf(this.chart!, box.node.value).value;
    const size = grid ? `${grid.letters.join(" ")} ${grid.shape.join("×")}` : "";
    element.setAttribute("tabindex", "0");
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", [box.title, box.equation, size].filter(Boolean).join(", "));
    if (box.node.kind === "group") element.setAttribute("aria-expanded", String(box.open));
  }

  /** As wide as there is room, but large enough to be read; what comes first is in sight. */
  private fit(laid: Laid): void {
    const room = this.stage.clientWidth - 4;
    this.scale(Math.min(1.1, Math.max(room < 600 ? 0.8 : 0.6, room / laid.width)));
    const first = laid.boxes.reduce((best, box) => (box.y < best.y ? box : best));
    this.stage.scrollLeft = (first.x + first.width / 2) * this.zoom - room / 2;
  }

  private scale(zoom: number): void {
    this.zoom = Math.min(3, Math.max(0.2, zoom));
    const drawn = this.stage.querySelector<SVGSVGElement>("svg");
    if (!drawn || !this.laid) return;
    drawn.setAttribute("width", String(Math.ceil(this.laid.width * this.zoom)));
    drawn.setAttribute("height", String(Math.ceil(this.laid.height * this.zoom)));
  }

  private boxOf(id: number | string | null): Box | null {
    return this.laid?.boxes.find((box) => String(box.id) === String(id)) ?? null;
  }

  private clicked(target: EventTarget | null): void {
    const element = (target as Element | null)?.closest("[data-box]");
    const box = this.boxOf(element?.getAttribute("data-box") ?? null);
    if (!box?.node) return;
    if (box.node.kind === "group" && !(target as Element).closest(".cover")) this.toggle(box.node);
    this.select(box.node.number);
  }

  private toggle(node: Node): void {
    const way = ways(this.chart!)[node.number]!;
    if (!this.open.delete(way)) this.open.add(way);
    void this.redraw();
  }

  private select(number: number | null, scroll = true): void {
    const { chart, panel } = this;
    this.stage.querySelectorAll(".chosen").forEach((element) => element.classList.remove("chosen"));
    if (!chart || !panel || number === null) return;
    const node = chart.nodes[number]!;
    this.chosen = number;
    const element = this.stage.querySelector(`[data-box="${number}"]`);
    element?.classList.add("chosen");
    if (scroll) element?.scrollIntoView({ block: "nearest", inline: "nearest" });
    const open = node.kind === "group" ? numbers(chart, this.open).has(number) : null;
    panel.show(node, this.language, this.theme, open, () => { this.toggle(node); });
    this.lit(element);
  }

  /** The ways into and out of a box. */
  private lit(element: Element | null | undefined): void {
    const id = element?.getAttribute("data-box") ?? null;
    this.stage.querySelectorAll<SVGPathElement>(".way").forEach((way) => {
      way.classList.toggle("lit", id !== null && (way.dataset["from"] === id || way.dataset["to"] === id));
    });
  }

  private pointed(event: PointerEvent): void {
    const target = event.target as Element;
    const holder = target.closest<SVGGElement>("[data-box]");
    const box = this.boxOf(holder?.getAttribute("data-box") ?? null);
    this.lit(holder ?? this.stage.querySelector(".chosen"));
    const cover = target.closest<SVGRectElement>(".cover");
    const matrix = holder?.getScreenCTM()?.inverse();
    if (!box?.node || !cover || !matrix) return this.point(null, null, null);
    const shown = box.pictures[Number(cover.dataset["shown"])]!;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
    this.point(box, shown, cellAt(shown.place, at.x, at.y), event);
  }

  /** Mark a cell, and the row and column it came from. */
  private point(box: Box | null, shown: Shown | null, cell: Cell | null, event?: PointerEvent): void {
    this.stage.querySelectorAll(".mark").forEach((mark) => mark.remove());
    this.tip.hidden = true;
    const { chart } = this;
    if (!chart || !box?.node || !cell || box.node.value === null) {
      if (!shown) this.panel?.mark(null);
      return;
    }
    const { node } = box;
    const holder = this.stage.querySelector(`[data-box="${box.id}"]`);
    const result = box.pictures.find((one) => one.operand === null) ?? null;
    const made = shown === null || shown.operand === null;
    if (made && result) {
      this.frame(holder, result, cell, cell.row, cell.column);
      const grids = node.operands.map((operand) => gridOf(chart, operand.value));
      for (const part of origin(node.rule, grids, result.grid, cell.row, cell.column)) {
        const picture = box.pictures.find((one) => one.operand === part.operand);
        if (picture) this.frame(holder, picture, cell, part.row, part.column);
      }
      if (node.number === this.chosen) this.panel?.mark(cell);
    } else if (shown) this.frame(holder, shown, cell, cell.row, cell.column);
    if (!event || !shown) return;
    const lines = made ? told(chart, node, cell, this.words) : told(chart, { ...node, value: node.operands[shown.operand!]!.value, rule: "" }, cell, this.words);
    this.tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    this.tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, window.innerWidth - offsetWidth - 8))}px`;
    this.tip.style.top = `${event.clientY + 18 + offsetHeight > window.innerHeight ? event.clientY - offsetHeight - 12 : event.clientY + 18}px`;
  }

  /** A frame around a cell, a row (column null) or a column (row null) of a picture. */
  private frame(holder: Element | null, shown: Shown, cell: Cell, row: number | null, column: number | null): void {
    const { place } = shown;
    const [down, across] = place.turned ? [column, row] : [row, column];
    if ((down ?? 0) >= place.rows || (across ?? 0) >= place.columns) return;
    const left = leftOf(place, Math.min(cell.matrix, place.matrices - 1));
    const x = left + (across ?? 0) * place.cell;
    const y = place.y + (down ?? 0) * place.cell;
    const wide = across === null ? place.columns * place.cell : place.cell;
    const high = down === null ? sizeOf(place)[1] : place.cell;
    holder?.append(draw("rect", { class: "mark", x: x - 1, y: y - 1, width: wide + 1, height: high + 1, rx: 1.5, fill: "none" }));
  }

  private async save(): Promise<void> {
    if (!this.chart) return;
    const text = await svg({ chart: this.chart, theme: this.theme, language: this.language }, this.open, this.step);
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })), download: `${this.chart.title.replaceAll(/\W+/g, "-")}.svg` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  private pressed(event: KeyboardEvent): void {
    const target = event.target as Element;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || target.matches("textarea, select, input[type=text]")) return;
    const box = this.boxOf(target.closest("[data-box]")?.getAttribute("data-box") ?? null);
    if ((event.key === "Enter" || event.key === " ") && box?.node) this.clicked(target);
    else if (box && ["ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"].includes(event.key)) this.walk(box, event.key === "ArrowDown" || event.key === "ArrowRight" ? 1 : -1);
    else if ((event.key === "[" || event.key === "]") && this.chart && this.chart.steps > 1) {
      this.step = Math.min(Math.max(1, this.step + (event.key === "]" ? 1 : -1)), this.chart.steps);
      const slider = this.root.querySelector<HTMLInputElement>(".steps input")!;
      slider.value = String(this.step);
      slider.dispatchEvent(new Event("input"));
    } else if (event.key === "+" || event.key === "=") this.scale(this.zoom * 1.25);
    else if (event.key === "-") this.scale(this.zoom / 1.25);
    else return;
    event.preventDefault();
  }

  /** The next box, in the order in which they ran. */
  private walk(from: Box, step: 1 | -1): void {
    const order = (this.laid?.boxes ?? []).filter((box) => box.node).sort((a, b) => a.node!.number - b.node!.number);
    const next = order[order.indexOf(from) + step];
    if (next) this.stage.querySelector<SVGGElement>(`[data-box="${next.id}"]`)?.focus();
  }
}
