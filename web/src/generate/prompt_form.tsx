// The prompt and the settings of a generation.

import { useLayoutEffect, useRef } from "preact/hooks";

import type { LanguageInfo } from "../api/types.ts";
import type { Store } from "../shell/store.ts";
import { START } from "../shell/url_state.ts";
import type { Settings } from "./generation.ts";

const MOST_TOKENS = 4096;
/** The settings that are shown on request: which tokens may be chosen, and what ends or repeats. */
const RESTRICTIONS = ["top_k", "top_p", "min_p"] as const;
const MORE = [...RESTRICTIONS, "repetition_penalty", "stop"] as const;
const NUMBERS = {
  temperature: { min: 0, max: 10, step: 0.05 },
  tokens: { min: 1, max: MOST_TOKENS, step: 1 },
  seed: { min: 0, max: 999_999_999, step: 1 },
  top_k: { min: 0, max: 999_999_999, step: 1 },
  top_p: { min: 0.05, max: 1, step: 0.05 },
  min_p: { min: 0, max: 1, step: 0.01 },
  repetition_penalty: { min: 0.1, max: 10, step: 0.05 },
};
type NumberName = keyof typeof NUMBERS;

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
    const more = form.current!.querySelector("details")!;
    if (more.querySelector(":invalid")) more.open = true; // the browser shows what is wrong
    if (form.current!.reportValidity()) submit(settingsIn(form.current!, box.current!.value));
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return (
    <form class="say" ref={form} onSubmit={send}>
      <label class="field wide">
        <span>{state.chat && info.chat ? words.generate.message : words.generate.label}</span>
        <textarea ref={box} rows={2} placeholder={words.generate.placeholder} maxLength={2000} onKeyDown={pressed} />
      </label>
      <div class="settings">
        <NumberField app={app} name="temperature" />
        <NumberField app={app} name="tokens" />
        <NumberField app={app} name="seed" />
        {info.chat && <ChatField app={app} />}
        <button type="submit" class="main">
          {words.generate.go}
        </button>
      </div>
      <MoreSettings app={app} />
    </form>
  );
}

function settingsIn(form: HTMLFormElement, say: string): Settings {
  const fields = new FormData(form);
  const numbers = Object.keys(NUMBERS).map((name) => [name, Number(fields.get(name))]);
  const values = Object.fromEntries(numbers) as Record<NumberName, number>;
  return { say, ...values, stop: String(fields.get("stop") ?? ""), chat: fields.has("chat") };
}

/** The settings that a beginner can leave alone. They are open if one of them is in use. */
function MoreSettings({ app }: { app: Store }) {
  const { words, state } = app;
  const used = MORE.some((name) => state[name] !== START[name]);
  return (
    <details class="more" open={used}>
      <summary>{words.generate.more}</summary>
      <div class="groups">
        <fieldset>
          <legend>{words.generate.restrict}</legend>
          {RESTRICTIONS.map((name) => (
            <NumberField key={name} app={app} name={name} />
          ))}
        </fieldset>
        <fieldset>
          <legend>{words.generate.repeat}</legend>
          <NumberField app={app} name="repetition_penalty" />
          <label class="field">
            <span>{words.generate.settings.stop}</span>
            <input type="text" name="stop" defaultValue={state.stop} key={state.stop} maxLength={100} />
            <small>{words.generate.about.stop}</small>
          </label>
        </fieldset>
      </div>
    </details>
  );
}

function ChatField({ app }: { app: Store }) {
  const { words, state } = app;
  return (
    <label class="check" title={words.generate.about.chat}>
      <input type="checkbox" name="chat" defaultChecked={state.chat} key={String(state.chat)} />
      <span>{words.generate.settings.chat}</span>
    </label>
  );
}

function NumberField({ app, name }: { app: Store; name: NumberName }) {
  const { settings, about } = app.words.generate;
  const value = app.state[name];
  return (
    <label class="field">
      <span>{settings[name]}</span>
      <input
        type="number"
        inputMode="decimal"
        required
        name={name}
        defaultValue={String(value)}
        key={value}
        {...NUMBERS[name]}
      />
      <small>{about[name]}</small>
    </label>
  );
}
