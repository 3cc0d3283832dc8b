// The controls that several views share.

import { type App, brief, headName, mapOf } from "./app.ts";
import { make } from "./dom.ts";
import type { Head, State } from "./state.ts";

/** A choice among a few: radio buttons that look like one bar. */
export function choice<T extends string>(
  label: string, names: Record<T, string>, chosen: T, choose: (value: T) => void, disabled: T[] = [],
): HTMLElement {
  const group = `g${Math.random().toString(36).slice(2)}`;
  const buttons = (Object.entries(names) as [T, string][]).map(([value, name]) =>
    make("label", {},
      make("input", {
        type: "radio", name: group, value, checked: value === chosen, disabled: disabled.includes(value),
        onchange: () => choose(value), attributes: { "data-keep": `${label} ${value}` },
      }),
      make("span", {}, name)));
  return make("fieldset", "choice", make("legend", {}, label), make("div", "bar", ...buttons));
}

export function select(
  label: string, options: [value: string, name: string][], chosen: string, choose: (value: string) => void,
): HTMLElement {
  const box = make("select", { onchange: () => choose(box.value), attributes: { "data-keep": label } },
    ...options.map(([value, name]) => make("option", { value, selected: value === chosen }, name)));
  return make("label", "field", make("span", {}, label), box);
}

/** Layer and head. The chosen token stays where the other map has it. */
export function chooseHead(app: App): HTMLElement {
  const { words, state, target } = app;
  const map = mapOf(app);
  const layers = target.maps.map((one): [string, string] => [String(one.id), `${one.id} · ${brief(one.name)}`]);
  const heads = ["mean" as Head, ...Array.from({ length: map.heads }, (_, head) => head)];
  return make("div", "pair",
    select(words.map.layer, layers, String(map.id), (value) => app.go(moved(app, Number(value), state.head))),
    select(words.map.head, heads.map((head) => [String(head), headName(app, head)]), String(state.head), (value) =>
      app.go({ map: map.id, head: value === "mean" ? "mean" : Number(value) })));
}

/** Another map: the place on the old one is kept only where both are of one size. */
function moved(app: App, id: number, head: Head): Partial<State> {
  const [old, next] = [mapOf(app), app.target.maps[id]!];
  const alike = old.queries === next.queries && old.keys === next.keys;
  const place = alike ? {} : { sight: null, token: null, end: null };
  return { map: id, head: head === "mean" ? "mean" : Math.min(head, next.heads - 1), ...place };
}

/** The keys [ ] { }: previous and next head, previous and next layer. */
export function stepHead(app: App, key: string): boolean {
  const map = mapOf(app);
  if (key === "[" || key === "]") {
    const ring: Head[] = ["mean", ...Array.from({ length: map.heads }, (_, head) => head)];
    const place = ring.indexOf(app.state.head) + (key === "]" ? 1 : -1);
    app.go({ map: map.id, head: ring[(place + ring.length) % ring.length]! });
    return true;
  }
  if (key === "{" || key === "}") {
    const next = map.id + (key === "}" ? 1 : -1);
    if (next >= 0 && next < app.target.maps.length) app.go(moved(app, next, app.state.head));
    return true;
  }
  return false;
}

/** A line of a list of weights: a token, a bar as long as its weight, the weight. */
export function weighed(
  name: string, weight: number, strongest: number, shown: string, action: () => void,
): HTMLElement {
  const bar = make("i", "measure");
  bar.style.setProperty("--share", String(strongest > 0 ? weight / strongest : 0));
  return make("li", {}, make("button", { type: "button", className: "weighed", onclick: action },
    make("span", "token", name), bar, make("span", "number", shown)));
}
