// The prompt and the settings of a generation.

import { useLayoutEffect, useRef } from "preact/hooks";

import type { LanguageInfo } from "../api/types.ts";
import type { Store } from "../shell/store.ts";
import type { State } from "../shell/url_state.ts";

const MOST_TOKENS = 4096;

/** The settings that are in the URL, and their names in a request. */
export type Settings = Pick<State, "say" | "seed" | "temperature" | "top_p" | "tokens">;

interface FormProps {
  app: Store;
  info: LanguageInfo;
  submit: (settings: Settings) => void;
}

export function PromptForm({ app, info, submit }: FormProps) {
  const { words, state } = app;
  const form = useRef<HTMLFormElement>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    box.current!.value = state.say || info.prompt;
  }, [state.say, info.prompt]);
  const send = (event: Event): void => {
    event.preventDefault();
    if (!form.current!.reportValidity()) return;
    const value = (name: string): number => Number(new FormData(form.current!).get(name));
    const numbers = { seed: value("seed"), temperature: value("temperature"), top_p: value("top_p") };
    submit({ say: box.current!.value, ...numbers, tokens: value("tokens") });
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return (
    <form class="say" ref={form} onSubmit={send}>
      <label class="field wide">
        <span>{words.generate.label}</span>
        <textarea ref={box} rows={2} placeholder={words.generate.placeholder} maxLength={2000} onKeyDown={pressed} />
      </label>
      <SettingFields app={app} />
    </form>
  );
}

function SettingFields({ app }: { app: Store }) {
  const { words, state } = app;
  return (
    <div class="settings">
      <NumberField
        label={words.generate.temperature}
        name="temperature"
        value={state.temperature}
        max={10}
        step={0.05}
      />
      <NumberField label={words.generate.topP} name="top_p" value={state.top_p} min={0.05} max={1} step={0.05} />
      <NumberField label={words.generate.seed} name="seed" value={state.seed} max={999_999_999} />
      <NumberField label={words.generate.tokens} name="tokens" value={state.tokens} min={1} max={MOST_TOKENS} />
      <button type="submit" class="main">
        {words.generate.go}
      </button>
    </div>
  );
}

interface NumberProps {
  label: string;
  name: string;
  value: number;
  min?: number;
  max: number;
  step?: number;
}

function NumberField({ label, name, value, min = 0, max, step = 1 }: NumberProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        required
        name={name}
        defaultValue={String(value)}
        key={value}
        min={min}
        max={max}
        step={step}
      />
    </label>
  );
}
