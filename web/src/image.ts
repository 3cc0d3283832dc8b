// The view Image: the picture of a vision model in patches, with an overlay of the class token, a patch, or rollout.

import { type App, type Shown, mapOf } from "./app.ts";
import { decoded } from "./ahead.ts";
import { type OverlayAnswer, type Picture, answer, paths } from "./api.ts";
import { choice, chooseHead, stepHead } from "./controls.ts";
import { ARROWS, figure, make } from "./dom.ts";
import { clamp } from "./levels.ts";
import { ramp, shade } from "./palette.ts";
import type { State } from "./state.ts";
import { Latest, each } from "./work.ts";

export class ImageView implements Shown {
  readonly element: HTMLElement;
  private readonly app: App;
  private readonly picture: Picture;
  private readonly over = make("canvas", { className: "overlay", attributes: { "aria-hidden": "true" } });
  private readonly frame = make("i", { className: "patch", hidden: true });
  private readonly told = make("p", { className: "hint", attributes: { "aria-live": "polite" } });
  private readonly strip = make("div", "strip");
  private readonly stage: HTMLElement;
  private readonly latest: Latest;
  private readonly heads: Latest;
  private found: OverlayAnswer | null = null;

  constructor(app: App) {
    this.app = app;
    this.latest = new Latest(app.work);
    this.heads = new Latest(app.work);
    this.picture = app.target.image!;
    const { words, target } = app;
    const { rows, columns, width, height } = this.picture;
    const image = make("img", { src: paths.image(target.version), alt: "", draggable: false });
    void decoded(image);
    if (width < 512) image.classList.add("crisp");
    this.stage = make("div", {
      className: "picture", tabIndex: 0,
      attributes: { role: "application", "aria-label": words.image.picture(rows, columns), "data-keep": "picture" },
      onclick: (event) => this.choose(this.at(event)),
      onpointermove: (event) => this.tell(this.at(event)),
      onpointerleave: () => this.tell(app.state.overlay === "patch" ? app.state.patch : null),
      onkeydown: (event) => { if (this.pressed(event)) event.preventDefault(); },
    }, image, this.over, this.frame);
    this.stage.style.aspectRatio = `${width} / ${height}`;
    const strength = make("input", {
      type: "range", min: "0", max: "100", value: "100",
      oninput: () => { this.over.style.opacity = String(Number(strength.value) / 100); },
    });
    this.element = make("section", "look image",
      make("div", "toolbar", make("div", "choosers"),
        choice(words.map.scale, words.map.scales, app.state.scale, (scale) => app.go({ scale })),
        make("label", "field", make("span", {}, words.image.strength), strength)),
      make("div", "desk", make("div", "framed", this.stage, this.told),
        make("aside", "panel", make("section", "card", make("h2", {}, words.image.heads), this.strip))));
    this.tools();
    this.tell(null);
    void this.refresh();
    void this.overviews();
  }

  private tools(): void {
    const { app } = this;
    const { words, state } = app;
    const focused = document.activeElement?.getAttribute("data-keep");
    const box = this.element.querySelector(".choosers")!;
    const lacking: State["overlay"][] = this.picture.first > 0 ? [] : ["class"];
    box.replaceChildren(chooseHead(app),
      choice(words.image.overlay, words.image.overlays, state.overlay, (overlay) => app.go({ overlay }), lacking));
    if (focused) box.querySelector<HTMLElement>(`[data-keep="${CSS.escape(focused)}"]`)?.focus();
  }

  private at(event: MouseEvent): number {
    const { rows, columns } = this.picture;
    const box = this.stage.getBoundingClientRect();
    const column = clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1);
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
    return row * columns + column;
  }

  private choose(patch: number): void {
    const rolled = this.app.state.overlay === "rollout";
    this.app.go({ patch, overlay: rolled ? "rollout" : "patch" }, this.app.state.patch !== null);
  }

  private pressed(event: KeyboardEvent): boolean {
    const { rows, columns } = this.picture;
    const step = ARROWS[event.key];
    if (event.key === "Escape" && this.app.state.patch !== null) {
      this.app.go({ patch: null, overlay: "class" });
      return true;
    }
    if (!step) return false;
    const from = this.app.state.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const row = clamp(Math.floor(from / columns) + step[0], 0, rows - 1);
    const column = clamp((from % columns) + step[1], 0, columns - 1);
    this.choose(row * columns + column);
    return true;
  }

  /** The token whose overlay is shown: the class token, or that of the chosen patch. */
  private token(): number {
    const { overlay, patch } = this.app.state;
    const { first } = this.picture;
    const own = overlay === "class" ? first > 0 : patch === null;
    return own ? 0 : first + (patch ?? 0);
  }

  private async refresh(): Promise<void> {
    const { app } = this;
    const { words, state } = app;
    const map = mapOf(app);
    const rolled = state.overlay === "rollout";
    const path = rolled ? paths.rolledOverlay(this.token()) : paths.overlay(map.id, state.head, this.token());
    this.outline();
    const found = await this.latest.run(rolled ? words.work.rollout : words.work.overlay, (signal) =>
      answer<OverlayAnswer>(path, signal));
    if (!found) return;
    this.found = found;
    paint(this.over, found, this.app);
    this.tell(state.patch);
  }

  private outline(): void {
    const { state } = this.app;
    const { rows, columns } = this.picture;
    this.frame.hidden = state.patch === null || state.overlay === "class";
    if (state.patch === null) return;
    this.frame.style.left = `${(100 * (state.patch % columns)) / columns}%`;
    this.frame.style.top = `${(100 * Math.floor(state.patch / columns)) / rows}%`;
    this.frame.style.width = `${100 / columns}%`;
    this.frame.style.height = `${100 / rows}%`;
  }

  private tell(patch: number | null): void {
    const { words, state } = this.app;
    const { columns } = this.picture;
    if (patch === null) {
      this.told.textContent = state.overlay === "rollout" ? words.image.rolled : words.image.hint;
      return;
    }
    const weight = this.found?.weights[patch];
    const place = words.image.patch(Math.floor(patch / columns) + 1, (patch % columns) + 1);
    this.told.textContent = weight === undefined ? place : `${place}: ${words.image.weightHere(figure(weight))}`;
  }

  /** An overlay that a head has of its own: rollout joins all. */
  private ownOverlay(): State["overlay"] {
    const { overlay } = this.app.state;
    if (overlay !== "rollout") return overlay;
    return this.picture.first > 0 ? "class" : "patch";
  }

  /** The overlay of every head of this layer, small. */
  private async overviews(): Promise<void> {
    const { app } = this;
    const map = mapOf(app);
    const token = this.token();
    const buttons = Array.from({ length: map.heads }, (_, head) => {
      const canvas = make("canvas", "overlay");
      const label = app.words.grid.head(String(head));
      const image = make("img", { src: paths.image(app.target.version), alt: "" });
      void decoded(image);
      const button = make("button", {
        type: "button", className: "small", title: label,
        onclick: () => app.go({ map: map.id, head, overlay: this.ownOverlay() }),
        attributes: { "aria-label": label, "aria-pressed": String(head === app.state.head) },
      }, image, canvas);
      return { head, canvas, button };
    });
    this.strip.replaceChildren(...buttons.map(({ button }) => button));
    await this.heads.run(app.words.work.overlay, (signal) => each(buttons, 2, signal, async ({ head, canvas }) => {
      paint(canvas, await answer<OverlayAnswer>(paths.overlay(map.id, head, token), signal), app);
    }));
  }

  update(before: State): void {
    const { state } = this.app;
    this.tools();
    void this.refresh();
    const another = before.patch !== state.patch || before.overlay !== state.overlay;
    if (another || before.scale !== state.scale) void this.overviews();
    else {
      this.strip.querySelectorAll("button").forEach((button, head) =>
        button.setAttribute("aria-pressed", String(head === state.head)));
    }
  }

  key(event: KeyboardEvent): boolean {
    return stepHead(this.app, event.key);
  }

  close(): void {
    this.latest.stop();
    this.heads.stop();
  }
}

/** Weights as colours, one pixel a patch: strong ones light up from a veil through which the picture is seen. */
function paint(canvas: HTMLCanvasElement, { rows, columns, weights }: OverlayAnswer, app: App): void {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d")!;
  const pixels = context.createImageData(columns, rows);
  const table = ramp("dark");
  const strongest = weights.reduce((most, weight) => Math.max(most, weight), 0);
  weights.forEach((weight, patch) => {
    const strength = shade(weight, strongest, app.state.scale);
    const [red, green, blue] = table[Math.round(255 * strength)]!;
    pixels.data.set([red, green, blue, Math.round(255 * (0.6 + 0.2 * strength))], 4 * patch);
  });
  context.putImageData(pixels, 0, 0);
}
