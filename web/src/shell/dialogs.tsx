// Dialogs: the list of keys, and the text for the model to read.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

import type { Store } from "./store.ts";

type DialogProps = { label: string; class?: string; close: () => void; children: ComponentChildren };

function Dialog({ label, close, children, ...more }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => dialog.current!.showModal(), []);
  return (
    <dialog ref={dialog} aria-label={label} onClose={close} {...more}>
      <h2>{label}</h2>
      {children}
    </dialog>
  );
}

export function Help({ app }: { app: Store }) {
  const { words } = app;
  const close = (): void => app.help(false);
  return (
    <Dialog label={words.keys.title} class="help" close={close}>
      <dl>
        {words.keys.rows.map(({ keys, does }) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="main" autofocus onClick={close}>
        {words.close}
      </button>
    </Dialog>
  );
}

/** Asks for another text and runs the model on it. */
export function AnotherText({ app, close }: { app: Store; close: () => void }) {
  const { words } = app;
  const box = useRef<HTMLTextAreaElement>(null);
  const submit = (event: Event): void => {
    event.preventDefault();
    void app.run(box.current!.value);
    close();
  };
  return (
    <Dialog label={words.text.anotherTitle} close={close}>
      <form method="dialog" onSubmit={submit}>
        <textarea ref={box} rows={8} required aria-label={words.text.anotherTitle} />
        <div class="between">
          <button type="button" class="plain" onClick={close}>
            {words.close}
          </button>
          <button type="submit" class="main">
            {words.text.run}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
