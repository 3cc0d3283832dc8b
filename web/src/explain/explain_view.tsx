// The view Explain: a mechanism as a chart whose boxes open and close, step by step.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { paths } from "../api/client.ts";
import { begin, end } from "../api/pending_requests.ts";
import type { ExplainOffer } from "../api/types.ts";
import { useAnswer } from "../api/use_answer.ts";
import { type Store, useHandlers } from "../shell/store.ts";
import type { Box, ChartLayout } from "./chart_layout.ts";
import { layout } from "./chart_layout.ts";
import { type Chart, mechanismIn, see } from "./chart_model.ts";
import { ChartCanvas, type Pointed } from "./chart_canvas.tsx";
import { type ChartState, initial, isOpen, stepped, toggled, zoomed } from "./chart_state.ts";
import { ExplainToolbar } from "./explain_toolbar.tsx";
import { numbers } from "./open_groups.ts";
import { ValuePanel } from "./value_panel.tsx";
import { origins } from "./value_text.ts";

const RUN = "run"; // the name of the model of the target among the mechanisms
const MOST_LETTERS = 500;

/** The state in the URL: #bahdanau?text=the+cat&step=2 */
type Address = { name: string; text: string; step: number };

function readAddress(): Address {
  const [name = "", query] = window.location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const field = new URLSearchParams(query ?? "");
  return { name, text: (field.get("text") ?? "").slice(0, MOST_LETTERS), step: Number(field.get("step")) || 1 };
}

/** The mechanism in the URL, or the model of the target, or the first mechanism. */
function mechanismOf(offer: ExplainOffer | null, name: string): string | null {
  if (!offer) return null;
  const known = offer.mechanisms.map((one) => one.name);
  if (offer.run) known.unshift(RUN);
  return known.includes(name) ? name : (known[0] ?? null);
}

/** The text in the URL. The model of the target reads its own text: the prompt, the sentence, or what it was opened
 * with. */
function textOf({ state, target }: Store, mechanism: string | null, { text }: Address): string {
  return text || (mechanism === RUN ? (state.say || target.text || "").slice(0, MOST_LETTERS) : "");
}

/** `file` is the chart of a self-contained file; otherwise the chart is requested from the server. */
export function ExplainView({ app, file }: { app: Store; file: Chart | null }) {
  const { words } = app;
  const address = readAddress();
  const offer = useAnswer<ExplainOffer>(
    app,
    file || !app.target.version ? null : paths.explain,
    ({ loading }) => loading,
  );
  const mechanism = mechanismOf(offer, address.name);
  const text = textOf(app, mechanism, address);
  const missing = mechanism === RUN && !text && !app.target.image;
  const path = mechanism === null || missing ? null : paths.chart(mechanism, text);
  const answered = useAnswer<Chart>(app, path, ({ explain }) => explain.chart, true);
  const chart = file ?? (missing ? null : answered);
  const first = useMemo(() => chart && initial(chart, address.step), [chart]);
  const [edited, setState] = useState<ChartState | null>(null);
  const state = edited && edited.chart === chart ? edited : first;
  const title = mechanismIn(app.language, file ? "" : (mechanism ?? "")) ?? chart?.title ?? "";
  useLayoutEffect(() => app.entitle(chart ? title : ""), [chart, title]);
  if (!offer && !state) return null;
  const asked = { offer, mechanism: mechanism ?? "", text };
  return (
    <>
      <ExplainToolbar app={app} asked={asked} state={state} setState={setState} />
      {missing && <p class="hint">{words.explain.empty}</p>}
      {state && <ChartDesk app={app} state={state} setState={setState} />}
    </>
  );
}

/** The layout, recomputed after every change. The previous layout is kept until then. */
function useLayout(app: Store, { chart, open, step }: ChartState): ChartLayout | null {
  const { language, words } = app;
  const [known, setKnown] = useState<{ chart: Chart; chartLayout: ChartLayout } | null>(null);
  useLayoutEffect(() => {
    const turn = { live: true };
    const groups = numbers(chart, open);
    begin(turn, "drawing");
    void layout(chart, see(chart, groups, step), groups, language, words.explain.earlier).then((chartLayout) => {
      if (turn.live) setKnown({ chart, chartLayout });
      end(turn);
    });
    return () => {
      turn.live = false;
      end(turn);
    };
  }, [chart, open, step, language]);
  return known?.chart === chart ? known.chartLayout : null;
}

type DeskProps = { app: Store; state: ChartState; setState: (state: ChartState) => void };

/** The chart, and the values of the selected box beside it. */
function ChartDesk({ app, state, setState }: DeskProps) {
  const { chart, chosen, zoom } = state;
  const chartLayout = useLayout(app, state);
  const [lit, setLit] = useState<string | null>(null);
  const [pointed, point] = useState<Pointed | null>(null);
  const node = chosen === null ? null : chart.nodes[chosen]!;
  const select = (box: Box, target: Element): void => {
    const opens = box.node!.kind === "group" && !target.closest(".cover");
    setState({ ...(opens ? toggled(state, box.node!) : state), chosen: box.node!.number });
    setLit(String(box.id));
    target.closest("[data-box]")!.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  useHandlers(app, [chartLayout, state], { key: (event) => pressed(event, chartLayout, state, setState, select) });
  const own = pointed && pointed.box.node === node && (pointed.shown?.operand ?? null) === null;
  const pointHere = (cell: Pointed["cell"] | null): void => {
    const box = chartLayout?.boxes.find((one) => one.id === chosen);
    point(cell && box ? { box, cell, shown: null, x: 0, y: 0 } : null);
  };
  const open = node?.kind === "group" ? isOpen(state, node) : null;
  const panel = { app, chart, node, open, cell: own ? pointed.cell : null, point: pointHere };
  const properties = { chart, theme: app.theme, zoom, chosen, lit, pointed, setLit, point, select };
  const setZoom = (next: number): void => setState({ ...state, zoom: next });
  return (
    <div class="desk">
      {chartLayout ? <ChartCanvas {...properties} layout={chartLayout} setZoom={setZoom} /> : <div class="stage" />}
      <ValuePanel key={chosen ?? "none"} {...panel} toggle={() => setState(toggled(state, node!))} />
      {pointed?.shown && <Tip app={app} chart={chart} pointed={pointed} />}
    </div>
  );
}

function pressed(
  event: KeyboardEvent,
  chartLayout: ChartLayout | null,
  state: ChartState,
  setState: (state: ChartState) => void,
  select: (box: Box, target: Element) => void,
): boolean {
  const target = event.target as Element;
  const holder = target.closest("[data-box]");
  const box = chartLayout?.boxes.find((one) => String(one.id) === holder?.getAttribute("data-box"));
  if ((event.key === "Enter" || event.key === " ") && box?.node) select(box, target);
  else if (box && /^Arrow/.test(event.key))
    walk(chartLayout!, box, event.key === "ArrowDown" || event.key === "ArrowRight" ? 1 : -1);
  else if ((event.key === "[" || event.key === "]") && state.chart.steps > 1) {
    setState(stepped(state, state.step + (event.key === "]" ? 1 : -1)));
  } else if (event.key === "+" || event.key === "=") setState(zoomed(state, 1.25));
  else if (event.key === "-") setState(zoomed(state, 1 / 1.25));
  else return false;
  return true;
}

/** Focus the next box, in execution order. */
function walk(chartLayout: ChartLayout, from: Box, step: 1 | -1): void {
  const order = chartLayout.boxes.filter((box) => box.node).sort((a, b) => a.node!.number - b.node!.number);
  const next = order[order.indexOf(from) + step];
  if (next) document.querySelector<SVGGElement>(`[data-box="${next.id}"]`)?.focus();
}

/** Tooltip with the hovered value and its origin. */
function Tip({ app, chart, pointed: { box, cell, shown, x, y } }: { app: Store; chart: Chart; pointed: Pointed }) {
  const tip = useRef<HTMLDivElement>(null);
  const node = box.node!;
  const operand = shown!.operand;
  const about = operand === null ? node : { ...node, value: node.operands[operand]!.value, rule: "" as const };
  useLayoutEffect(() => {
    const { offsetWidth, offsetHeight, style } = tip.current!;
    style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - offsetWidth - 8))}px`;
    style.top = `${y + 18 + offsetHeight > window.innerHeight ? y - offsetHeight - 12 : y + 18}px`;
  });
  return (
    <div class="tip" role="tooltip" ref={tip}>
      {about.value !== null && origins(chart, about, cell, app.words).map((line) => <div key={line}>{line}</div>)}
    </div>
  );
}
