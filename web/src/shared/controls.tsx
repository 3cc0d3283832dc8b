// Controls that several views share.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

import { type Store, headName, mapOf } from "../shell/store.ts";
import type { Head, State } from "../shell/url_state.ts";
import { brief } from "./format.ts";

interface ChoiceProps<T extends string> {
  label: string;
  names: Record<T, string>;
  value: T;
  choose: (value: T) => void;
  disabled?: readonly T[];
}

/** A choice among a few: radio buttons that look like one bar. */
export function Choice<T extends string>({ label, names, value, choose, disabled = [] }: ChoiceProps<T>) {
  const group = useId();
  return (
    <fieldset class="choice">
      <legend>{label}</legend>
      <div class="bar">
        {(Object.entries(names) as [T, string][]).map(([one, name]) => (
          <label key={one}>
            <input
              type="radio"
              name={group}
              value={one}
              checked={one === value}
              disabled={disabled.includes(one)}
              onChange={() => choose(one)}
            />
            <span>{name}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

interface MenuProps<T extends string> {
  label: string;
  options: [value: T, name: string][];
  value: T;
  choose: (value: T) => void;
}

/** A list without a visible label. */
export function Menu<T extends string>({ label, options, value, choose }: MenuProps<T>) {
  return (
    <select aria-label={label} value={value} onChange={(event) => choose(event.currentTarget.value as T)}>
      {options.map(([one, name]) => (
        <option key={one} value={one} selected={one === value}>
          {name}
        </option>
      ))}
    </select>
  );
}

/** A list below its label. */
export function Select<T extends string>(props: MenuProps<T>) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <Menu {...props} />
    </label>
  );
}

export function IconButton({ label, sign, action }: { label: string; sign: string; action: () => void }) {
  return (
    <button type="button" class="icon" title={label} aria-label={label} onClick={action}>
      {sign}
    </button>
  );
}

export function ReduceChoice({ app }: { app: Store }) {
  const { map } = app.words;
  return (
    <Choice
      label={map.reduce}
      names={map.reduces}
      value={app.state.reduce}
      choose={(reduce) => app.go({ reduce })}
      disabled={app.recorded ? ["mean"] : []}
    />
  );
}

export function ScaleChoice({ app }: { app: Store }) {
  const { map } = app.words;
  return <Choice label={map.scale} names={map.scales} value={app.state.scale} choose={(scale) => app.go({ scale })} />;
}

function headsOf(app: Store): Head[] {
  const map = mapOf(app);
  const all: Head[] = ["mean", ...Array.from({ length: map.heads }, (_, head) => head)];
  return all.filter((head) => app.opens(map.id, head));
}

/** Layer and head. The selected token is kept if the other map has it. */
export function HeadChoice({ app }: { app: Store }) {
  const { words, state, target } = app;
  const map = mapOf(app);
  const opens = target.maps.filter(({ id }) => !app.recorded || app.recorded.nearest(id)?.map === id);
  const layers = opens.map((one): [string, string] => [String(one.id), `${one.id} · ${brief(one.name)}`]);
  const heads = headsOf(app).map((head): [string, string] => [String(head), headName(app, head)]);
  const chooseHead = (value: string): void => app.go({ map: map.id, head: value === "mean" ? "mean" : Number(value) });
  return (
    <div class="pair">
      <Select
        label={words.map.layer}
        options={layers}
        value={String(map.id)}
        choose={(value) => goToLayer(app, Number(value))}
      />
      <Select label={words.map.head} options={heads} value={String(state.head)} choose={chooseHead} />
    </div>
  );
}

/** Show another layer. The view is kept only if both maps have the same size. */
function goToLayer(app: Store, id: number): void {
  const [old, next, { head }] = [mapOf(app), app.target.maps[id]!, app.state];
  const same = old.queries === next.queries && old.keys === next.keys;
  const view: Partial<State> = same ? {} : { sight: null, token: null, end: null };
  app.go({ map: id, head: head === "mean" ? "mean" : Math.min(head, next.heads - 1), ...view });
}

/** The keys [ ] { }: previous and next head, previous and next layer. */
export function stepHead(app: Store, key: string): boolean {
  const map = mapOf(app);
  if (key === "[" || key === "]") {
    const heads = headsOf(app);
    const next = heads.indexOf(app.state.head) + (key === "]" ? 1 : -1);
    app.go({ map: map.id, head: heads[(next + heads.length) % heads.length]! });
    return true;
  }
  if (key === "{" || key === "}") {
    const next = map.id + (key === "}" ? 1 : -1);
    if (next >= 0 && next < app.target.maps.length) goToLayer(app, next);
    return true;
  }
  return false;
}

interface Weighed {
  name: string;
  /** Shown if the text has several tokens of that name. */
  position: number | null;
  weight: number;
  shown: string;
  choose: () => void;
}

/** A list of tokens, each with a bar as long as its weight. */
export function WeightList({ items, strongest }: { items: Weighed[]; strongest: number }) {
  return (
    <ol class="weights">
      {items.map(({ name, position, weight, shown, choose }, index) => (
        <li key={index}>
          <button type="button" class="weighed" onClick={choose}>
            <span class="name">
              <span class="token">{name}</span>
              {position !== null && <small>{position}</small>}
            </span>
            <i class="measure" style={{ "--share": String(strongest > 0 ? weight / strongest : 0) }} />
            <span class="number">{shown}</span>
          </button>
        </li>
      ))}
    </ol>
  );
}

/** Names and values side by side. */
export function Facts({ lines }: { lines: [name: string, value: ComponentChildren][] }) {
  return (
    <dl>
      {lines.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
