// The prompt and the settings of a generation.

import type { InputHTMLAttributes } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";

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
  const reveal = (event: Event): void => {
    (event.currentTarget as HTMLDetailsElement).open = true; // the browser shows what is wrong
  };
  return (
    <details class="more" open={used} onInvalidCapture={reveal}>
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
          <Field app={app} name="stop" attributes={{ type: "text", maxLength: 100 }} />
        </fieldset>
      </div>
    </details>
  );
}

function ChatField({ app }: { app: Store }) {
  const { words, state } = app;
  const box = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    box.current!.checked = state.chat;
  }, [state.chat]);
  return (
    <label class="check" title={words.generate.about.chat}>
      <input type="checkbox" name="chat" ref={box} />
      <span>{words.generate.settings.chat}</span>
    </label>
  );
}

function NumberField({ app, name }: { app: Store; name: NumberName }) {
  return <Field app={app} name={name} attributes={{ type: "number", inputMode: "decimal", ...NUMBERS[name] }} />;
}

type FieldProps = { app: Store; name: NumberName | "stop"; attributes: InputHTMLAttributes };

/** A setting with its explanation. It shows the value of the URL until the user types another. */
function Field({ app, name, attributes }: FieldProps) {
  const { settings, about } = app.words.generate;
  const [value, id, box] = [String(app.state[name]), useId(), useRef<HTMLInputElement>(null)];
  useLayoutEffect(() => {
    box.current!.value = value;
  }, [value]);
  return (
    <div class="field">
      <label for={id}>{settings[name]}</label>
      <input
        id={id}
        ref={box}
        name={name}
        required={name !== "stop"}
        aria-describedby={`${id}-about`}
        {...attributes}
      />
      <small id={`${id}-about`}>{about[name]}</small>
    </div>
  );
}
