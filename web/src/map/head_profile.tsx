// The statistics of one head.

import { paths } from "../api/client.ts";
import type { Profile } from "../api/types.ts";
import { useAnswer } from "../api/use_answer.ts";
import { Facts } from "../shared/controls.tsx";
import { type Store, mapOf } from "../shell/store.ts";

export function HeadProfile({ app, head }: { app: Store; head: number }) {
  const { map: words } = app.words;
  const { id, kind } = mapOf(app);
  const profiles = useAnswer<Profile[]>(app, paths.profile(id), ({ work }) => work.profile);
  const profile = profiles?.[head];
  if (!profile) return null;
  const fixed = (value: number | null, digits: number): string => (value === null ? "–" : value.toFixed(digits));
  const percent = (value: number | null): string => (value === null ? "–" : `${fixed(100 * value, 1)} %`);
  const lines: [string, string][] = [
    [words.entropy, fixed(profile.entropy, 2)],
    [words.distance, fixed(profile.distance, 1)],
    [words.first, percent(profile.first)],
    [words.previous, percent(profile.previous)],
    [words.same, percent(profile.same)],
  ];
  const across = new Set<string>([words.entropy, words.first]); // tokens of two sequences have no distance
  return (
    <section class="card">
      <h2>{words.profile}</h2>
      <Facts lines={kind === "cross" ? lines.filter(([name]) => across.has(name)) : lines} />
    </section>
  );
}
