// The controls of the Explain view: mechanism, text, step, groups, zoom, and saving.

import { useRef } from "preact/hooks";

import type { ExplainOffer } from "../api/types.ts";
import { IconButton, Select } from "../shared/controls.tsx";
import { fill } from "../shared/translations.ts";
import type { Store } from "../shell/store.ts";
import { svg } from "./chart_file.ts";
import { mechanismIn } from "./chart_model.ts";
import { type ChartState, openedAll, stepped, zoomed } from "./chart_state.ts";

interface Asked {
  /** null in a file, which has no server. */
  offer: ExplainOffer | null;
  mechanism: string;
  text: string;
}

interface ExplainToolbarProps {
  app: Store;
  asked: Asked;
  state: ChartState | null;
  setState: (state: ChartState) => void;
}

export function ExplainToolbar({ app, asked, state, setState }: ExplainToolbarProps) {
  const { words } = app;
  return (
    <div class="toolbar">
      {asked.offer && <Mechanism app={app} asked={asked} offer={asked.offer} />}
      {state && state.chart.steps > 1 && <Steps app={app} state={state} setState={setState} />}
      {state && (
        <div class="icons">
          <IconButton label={words.explain.openAll} sign="⊞" action={() => setState(openedAll(state, true))} />
          <IconButton label={words.explain.closeAll} sign="⊟" action={() => setState(openedAll(state, false))} />
          <IconButton label={words.map.zoomOut} sign="−" action={() => setState(zoomed(state, 1 / 1.25))} />
          <IconButton label={words.map.zoomIn} sign="+" action={() => setState(zoomed(state, 1.25))} />
          <button type="button" class="plain" onClick={() => void save(app, state)}>
            {words.explain.save}
          </button>
        </div>
      )}
    </div>
  );
}

function go(app: Store, mechanism: string, text: string): void {
  const address = `#${mechanism}${text ? `?${new URLSearchParams({ text })}` : ""}`;
  if (window.location.hash !== address) app.visit(address);
}

type MechanismProps = { app: Store; asked: Asked; offer: ExplainOffer };

/** The mechanism and its input text. */
function Mechanism({ app, asked: { mechanism, text }, offer }: MechanismProps) {
  const { explain: words } = app.words;
  const box = useRef<HTMLInputElement>(null);
  const names = offer.mechanisms.map(({ name }): [string, string] => {
    const translated = mechanismIn(app.language, name);
    return [name, translated === null ? name : `${translated} · ${name}`];
  });
  if (offer.run) names.unshift(["run", offer.run]);
  const example = offer.mechanisms.find((one) => one.name === mechanism)?.text;
  const reads = example || (mechanism === "run" && !app.target.image);
  const submit = (event: Event): void => {
    event.preventDefault();
    go(app, mechanism, box.current!.value.trim());
  };
  return (
    <>
      <Select
        label={words.mechanism}
        options={names}
        value={mechanism}
        choose={(name) => go(app, name, name === "vit" ? "" : text)}
      />
      {reads && (
        <form class="field" onSubmit={submit}>
          <label class="field">
            <span>{words.text}</span>
            <input
              key={`${mechanism} ${text}`}
              ref={box}
              type="text"
              defaultValue={text}
              placeholder={example ?? ""}
              maxLength={500}
            />
          </label>
        </form>
      )}
    </>
  );
}

function Steps({ app, state, setState }: { app: Store; state: ChartState; setState: (state: ChartState) => void }) {
  const { chart, step } = state;
  const { explain: words } = app.words;
  const written = chart.written[step - 1];
  const name = fill(written ? words.stepWrites : words.step, { step, all: chart.steps, written: written ?? "" });
  return (
    <label class="field steps">
      <span data-step={step}>{name}</span>
      <input
        type="range"
        min="1"
        max={chart.steps}
        value={step}
        aria-valuetext={name}
        onInput={(event) => setState(stepped(state, Number(event.currentTarget.value)))}
      />
    </label>
  );
}

/** Save the current drawing. */
async function save({ theme, language }: Store, { chart, open, step }: ChartState): Promise<void> {
  const text = await svg({ chart, theme, language }, open, step);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = `${chart.title.replaceAll(/\W+/g, "-")}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}
