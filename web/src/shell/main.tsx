// The entry point of the page. In Node, without a page, it draws a chart to a file.

import "./style.css";
import "../explain/explain.css";
import "../generate/generate.css";

import { type VNode, render } from "preact";

import { arrivingPort, messages } from "../api/kernel_messages.ts";
import { RecordedAnswers, type Recording } from "../api/recorded_answers.ts";
import { setTransport } from "../api/transport.ts";
import { drawFile } from "../explain/chart_file.ts";
import type { Chart } from "../explain/chart_model.ts";
import { ExplainView } from "../explain/explain_view.tsx";
import { GenerateView } from "../generate/generate_view.tsx";
import { ImageView } from "../image/image_view.tsx";
import { HeadGrid } from "../map/head_grid.tsx";
import { MapView } from "../map/map_view.tsx";
import { modified } from "../shared/format.ts";
import { TextView } from "../text/text_view.tsx";
import { TranslateView } from "../translate/translate_view.tsx";
import { BROWSER, inMemory } from "./embedding.ts";
import { Help } from "./dialogs.tsx";
import { Header } from "./header.tsx";
import { StatusLine } from "./status_line.tsx";
import { Store } from "./store.ts";
import { VIEWS } from "./url_state.ts";

/** The view that the state names. */
function View({ app }: { app: Store }) {
  const { target, state } = app;
  const { views } = app.words;
  if (!target.can.length) return null;
  if (state.view === "translate") return <Titled title={views.translate} view={<TranslateView app={app} />} />;
  if (state.view === "generate") return <Titled title={views.generate} view={<GenerateView app={app} />} />;
  if (!target.maps.length) return <HeadGrid app={app} />;
  if (state.view === "image" && target.image) return <Titled title={views.image} view={<ImageView app={app} />} />;
  if (state.view === "text") return <Titled title={views.text} view={<TextView app={app} />} />;
  if (state.map === null) return <HeadGrid app={app} />;
  return <Titled title={views.map} view={<MapView app={app} />} />;
}

/** A view below a heading for screen readers. The tab of the view is what others see. */
function Titled({ title, view }: { title: string; view: VNode }) {
  return (
    <>
      <h1 class="unseen">{title}</h1>
      {view}
    </>
  );
}

/** `chart` is the chart of a self-contained file, which has no server. */
function Shell({ app, chart }: { app: Store; chart: Chart | null }) {
  return (
    <>
      <Header app={app} alone={chart !== null} />
      <main id="view" tabIndex={-1} class={app.explains ? "explain" : undefined}>
        {app.explains ? (
          <Titled title={app.words.explain.title} view={<ExplainView app={app} file={chart} />} />
        ) : (
          <View app={app} />
        )}
      </main>
      {chart === null && <StatusLine app={app} />}
      {app.helping && <Help app={app} />}
    </>
  );
}

function pressed(app: Store, event: KeyboardEvent): void {
  const typing =
    event.target instanceof Element && event.target.matches("textarea, select, input[type=text], input[type=number]");
  if (event.defaultPrevented || modified(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && app.requests.busy) app.requests.cancel(app.words.cancelled);
  else if (typing) return;
  else if (event.key === "?" && !app.explains) app.help(true);
  else if (/^[1-5]$/.test(event.key) && !app.explains) {
    const view = VIEWS[Number(event.key) - 1]!;
    if (!app.views().includes(view)) return;
    app.go({ view });
  } else if (!app.handlers.key?.(event)) return;
  event.preventDefault();
}

/** The contents of an element of a self-contained file; null on a server. */
function inlined<T>(id: string): T | null {
  const text = document.getElementById(id)?.textContent;
  return text ? (JSON.parse(text) as T) : null;
}

async function start(): Promise<void> {
  const [chart, recording] = [inlined<Chart>("chart"), inlined<Recording>("recording")];
  const recorded = recording && new RecordedAnswers(recording);
  const notebook = "notebook" in document.documentElement.dataset;
  if (recorded) setTransport(recorded.send);
  else if (notebook) setTransport(messages(await arrivingPort()));
  const address = notebook ? inMemory() : BROWSER;
  const embedding = { chart: chart !== null, recorded, address, viewsOnly: recorded !== null || notebook };
  const root = document.getElementById("page")!;
  const app = new Store(embedding, () => render(<Shell app={app} chart={chart} />, root));
  window.addEventListener("keydown", (event) => pressed(app, event));
  app.changed();
  if (chart) return;
  for (const event of ["popstate", "hashchange"]) window.addEventListener(event, () => app.readAddress());
  void app.loadTarget();
}

if (typeof document === "undefined") await drawFile();
else void start();
