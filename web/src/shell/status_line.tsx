// The bottom of the page: running work, messages, and the cancel button.

import { useLayoutEffect, useState } from "preact/hooks";

import { progressText } from "../api/pending_requests.ts";
import { type Words, fill } from "../shared/translations.ts";
import type { Store } from "./store.ts";

export function StatusLine({ app }: { app: Store }) {
  const { requests, words } = app;
  const [, draw] = useState(0);
  useLayoutEffect(() => {
    requests.changed = () => draw((count) => count + 1);
  }, [requests]);
  const { busy, message, slow } = requests;
  const wrong = !busy && (message?.wrong ?? false);
  return (
    <footer class={`status${busy ? " busy" : ""}${wrong ? " wrong" : ""}`}>
      <i class="pulse" aria-hidden="true" />
      <span class="said" role="status" aria-live="polite">
        {statusText(slow, words) ?? message?.text ?? words.ready}
      </span>
      {/* Not part of the live region above: it changes too often to be read aloud. */}
      <span class="far">{requests.progress && progressText(requests.progress, app.language)}</span>
      <button class="plain" type="button" hidden={!busy} onClick={() => requests.cancel(words.cancelled)}>
        {words.cancel}
      </button>
    </footer>
  );
}

function statusText(labels: readonly string[], words: Words): string | null {
  const what = labels.at(-1);
  if (what === undefined) return null;
  return fill(labels.length > 1 ? words.computingMore : words.computing, { what, more: labels.length - 1 });
}
