// The strongest links of one token in all heads of a layer, a colour for each head.

import { useState } from "preact/hooks";

import type { MapInfo } from "../api/types.ts";
import { useAnswers } from "../api/use_answer.ts";
import { fill } from "../shared/translations.ts";
import type { Store } from "../shell/store.ts";
import { type Answer, type Direction, type Names, pathOf, sides, weightsOf } from "./answers.ts";
import { LinkCurves } from "./link_curves.tsx";
import type { Link } from "./links.ts";
import { show } from "./token_spelling.ts";

const LINKS_EACH = 4;
const AT_ONCE = 3;

interface AllHeadsProps {
  app: Store;
  map: MapInfo;
  names: Names;
  /** The token under the mouse, or the chosen one. */
  at: { token: number; direction: Direction } | null;
}

export function AllHeads({ app, map, names, at }: AllHeadsProps) {
  const { words } = app;
  const [lit, setLit] = useState<number | null>(null);
  const heads = Array.from({ length: map.heads }, (_, head) => head);
  const asked = at ? heads.map((head) => pathOf(map, head, at.direction, at.token, LINKS_EACH)) : [];
  const answers = useAnswers<Answer>(app, asked, AT_ONCE, ({ work }) => work.links);
  const links: Link[] = answers.flatMap((answer, head) => {
    if (!answer || !at) return [];
    const { positions, weights } = weightsOf(answer);
    return positions.map((to, rank) => ({ from: at.token, to, weight: weights[rank]!, head }));
  });
  const both = sides(names, at?.direction ?? "from");
  const title = at ? fill(words.text.linksOf, { token: show(both.from[at.token] ?? ""), position: at.token }) : null;
  return (
    <section class="card linked" aria-label={title ?? words.text.links}>
      <h2>{title ?? words.text.links}</h2>
      <HeadColours app={app} map={map} heads={heads} setLit={setLit} />
      {at ? (
        <LinkCurves
          links={lit === null ? links : links.filter(({ head }) => head === lit)}
          names={both}
          label={title!}
          colour={({ head }) => headColour(head!, map.heads)}
        />
      ) : (
        <p class="hint">{words.text.linksPoint}</p>
      )}
    </section>
  );
}

type ColoursProps = { app: Store; map: MapInfo; heads: number[]; setLit: (head: number | null) => void };

/** The colour of each head. Pointing at one shows only its links; clicking chooses the head. */
function HeadColours({ app, map, heads, setLit }: ColoursProps) {
  return (
    <div class="heads" role="group" aria-label={app.words.map.head}>
      {heads.map((head) => {
        const light = (): void => setLit(head);
        const clear = (): void => setLit(null);
        return (
          <button
            key={head}
            type="button"
            aria-label={fill(app.words.grid.head, { head })}
            aria-pressed={head === app.state.head}
            style={{ "--head": headColour(head, map.heads) }}
            onPointerEnter={light}
            onPointerLeave={clear}
            onFocus={light}
            onBlur={clear}
            onClick={() => app.go({ map: map.id, head })}>
            {head}
          </button>
        );
      })}
    </div>
  );
}

/** Hues at equal distances, with the lightness of the theme. */
function headColour(head: number, heads: number): string {
  return `oklch(var(--links) 0.15 ${Math.round((360 * head) / heads)})`;
}
