// Hooks that ask the server for what a component shows. A component that is removed, or asks for something else, aborts
// its request.

import { useLayoutEffect, useState } from "preact/hooks";

import type { Store } from "../shell/store.ts";
import { answer } from "./client.ts";
import { type Label, each } from "./pending_requests.ts";

/** The answer to a GET request; null while there is none. With `keep`, the last answer stays until the next one is there. */
export function useAnswer<T>(app: Store, path: string | null, label: Label, keep = false): T | null {
  const key = `${app.target.version} ${path}`;
  const [known, setKnown] = useState<{ key: string; found: T } | null>(null);
  useLayoutEffect(() => {
    if (path === null) return undefined;
    const control = new AbortController();
    void app
      .request(label, (signal) => answer<T>(path, signal), control)
      .then((found) => {
        if (found !== undefined) setKnown({ key, found });
        else if (!control.signal.aborted) setKnown(null);
      });
    return () => control.abort();
  }, [key]);
  return known && path !== null && (keep || known.key === key) ? known.found : null;
}

/** The answers to several GET requests, asked for a few at a time; undefined where there is none yet. */
export function useAnswers<T>(app: Store, paths: readonly string[], few: number, label: Label): (T | undefined)[] {
  const key = `${app.target.version} ${paths.join("\n")}`;
  const [known, setKnown] = useState<{ key: string; found: (T | undefined)[] }>({ key: "", found: [] });
  useLayoutEffect(() => {
    if (!paths.length) return undefined;
    const control = new AbortController();
    const found = paths.map((): T | undefined => undefined);
    const task = (signal: AbortSignal): Promise<void> =>
      each(paths, few, signal, async (path, index) => {
        found[index] = await answer<T>(path, signal);
        setKnown({ key, found: [...found] });
      });
    void app.request(label, task, control);
    return () => control.abort();
  }, [key]);
  return known.key === key ? known.found : paths.map(() => undefined);
}
