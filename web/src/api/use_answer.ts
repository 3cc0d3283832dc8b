// Hooks that request data for a component. When the component is removed or requests other data, the request is aborted.

import { useLayoutEffect, useState } from "preact/hooks";

import type { WorkLabel } from "../shared/translations.ts";
import type { Store } from "../shell/store.ts";
import { answer } from "./client.ts";
import { each } from "./pending_requests.ts";

/** The path with the version of the target if it is about maps: another tab may have run another text since. */
function ofVersion({ target }: Store, path: string): string {
  if (!/^api\/(maps|overlay|rollout)\b/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}v=${encodeURIComponent(target.version)}`;
}

/** The response to a GET request; null until it arrives. With `keep`, the previous response is kept until then. */
export function useAnswer<T>(app: Store, path: string | null, label: WorkLabel, keep = false): T | null {
  const key = `${app.target.version} ${path}`;
  const [known, setKnown] = useState<{ key: string; result: T } | null>(null);
  useLayoutEffect(() => {
    if (path === null) return undefined;
    const control = new AbortController();
    void app
      .request(label, (signal) => answer<T>(ofVersion(app, path), signal), control)
      .then((result) => {
        if (result !== undefined) setKnown({ key, result });
        else if (!control.signal.aborted) setKnown(null);
      });
    return () => control.abort();
  }, [key]);
  return known && path !== null && (keep || known.key === key) ? known.result : null;
}

/** The responses to several GET requests, a few at a time; undefined for those that have not arrived. */
export function useAnswers<T>(app: Store, paths: readonly string[], few: number, label: WorkLabel): (T | undefined)[] {
  const key = `${app.target.version} ${paths.join("\n")}`;
  const [known, setKnown] = useState<{ key: string; result: (T | undefined)[] }>({ key: "", result: [] });
  useLayoutEffect(() => {
    if (!paths.length) return undefined;
    const control = new AbortController();
    const result = paths.map((): T | undefined => undefined);
    const task = (signal: AbortSignal): Promise<void> =>
      each(paths, few, signal, async (path, index) => {
        result[index] = await answer<T>(ofVersion(app, path), signal);
        setKnown({ key, result: [...result] });
      });
    void app.request(label, task, control);
    return () => control.abort();
  }, [key]);
  return known.key === key ? known.result : paths.map(() => undefined);
}
