// The panel beside the chart: the selected box with all values of its inputs and its output.

import { useMemo, useState } from "preact/hooks";

import { beside } from "../shared/format.ts";
import { type Theme, contrasting, css } from "../shared/palette.ts";
import { fill } from "../shared/translations.ts";
import type { Store } from "../shell/store.ts";
import { type Chart, type Grid, type Node, equationIn, gridOf, origin } from "./chart_model.ts";
import { colourOf } from "./value_picture.ts";
import { type Cell, origins, short } from "./value_text.ts";

interface ValuePanelProps {
  app: Store;
  chart: Chart;
  node: Node | null;
  /** Whether the group is open; null for a box that is not a group. */
  open: boolean | null;
  toggle: () => void;
  /** The hovered cell of the result, on the chart or in the panel. */
  cell: Cell | null;
  point: (cell: Cell | null) => void;
}

export function ValuePanel({ app, chart, node, open, toggle, cell, point }: ValuePanelProps) {
  const { words, language } = app;
  if (!node) {
    return (
      <aside class="panel">
        <p class="hint">{words.explain.choose}</p>
      </aside>
    );
  }
  const calls = [...new Set(node.calls)].join(", ");
  return (
    <aside class="panel">
      <header>
        <h2>{node.name[language]}</h2>
        {node.equation && <p class="equation">{equationIn(language, node)}</p>}
        {open !== null && (
          <button type="button" class="main" onClick={toggle}>
            {open ? words.explain.close : words.explain.open}
          </button>
        )}
      </header>
      <p class="told" role="status" aria-live="polite">
        {cell && node.value !== null ? origins(chart, node, cell, words).join("  ·  ") : "\u00a0"}
      </p>
      <Values app={app} chart={chart} node={node} cell={cell} point={point} />
      {calls && (
        <p class="hint calls">
          {words.explain.calls} <code>{calls}</code>
        </p>
      )}
    </aside>
  );
}

type ValuesProps = Pick<ValuePanelProps, "app" | "chart" | "cell" | "point"> & { node: Node };

/** The output of the box, then its inputs. */
function Values({ app, chart, node, cell, point }: ValuesProps) {
  const { language } = app;
  const words = app.words.explain;
  const result = node.value === null ? null : gridOf(chart, node.value);
  const operands = node.operands.map((operand) => gridOf(chart, operand.value));
  const parts = cell && result ? origin(node.rule, operands, result, cell.row, cell.column) : [];
  const sources = (numbers: readonly number[]): string =>
    [...new Set(numbers.map((number) => chart.nodes[number]!.name[language]))].slice(0, 3).join(", ");
  return (
    <>
      {result && <ValueCard app={app} chart={chart} name={words.output} grid={result} mark={cell} point={point} />}
      {operands.map((grid, index) => {
        const operand = node.operands[index]!;
        const name = operand.name || sources(operand.sources) || `${words.input} ${index + 1}`;
        const mark = parts.find((part) => part.operand === index) ?? null;
        return <ValueCard key={index} app={app} chart={chart} name={name} grid={grid} mark={mark} point={null} />;
      })}
    </>
  );
}

/** Marked cells; null means all rows or all columns. */
type Mark = { row: number | null; column: number | null };

interface ValueCardProps {
  app: Store;
  chart: Chart;
  name: string;
  grid: Grid;
  mark: Mark | null;
  point: ((cell: Cell | null) => void) | null;
}

function ValueCard({ name, ...props }: ValueCardProps) {
  const { app, grid, point } = props;
  const { explain: words } = app.words;
  const { letters, shape } = grid.value;
  const complete = grid.whole && grid.count * grid.rows * grid.columns === shape.reduce((a, b) => a * b, 1);
  const label = `${point ? words.output : words.input} ${letters.join(" ")} ${shape.join("×")}`;
  return (
    <section class="card">
      <h3>
        <span>{name}</span>
        <code>{letters.length ? `${letters.join(" ")} = ${shape.join("×")}` : "1"}</code>
      </h3>
      <div class="numbers">
        <ValueTable label={label} {...props} />
      </div>
      {!complete && <p class="hint">{fill(words.part, { rows: grid.rows, columns: grid.columns })}</p>}
    </section>
  );
}

type ValueTableProps = Omit<ValueCardProps, "name"> & { label: string };

/** The values of the first matrix. The arrow keys move through those of the result. */
function ValueTable({ label, point, ...props }: ValueTableProps) {
  const { grid } = props;
  const [at, setAt] = useState<Cell>({ matrix: 0, row: 0, column: 0 });
  const pressed = (event: KeyboardEvent): void => {
    const next = beside(event.key, at, grid.rows, grid.columns);
    if (!next) return;
    event.preventDefault();
    setAt({ matrix: 0, ...next });
    point?.({ matrix: 0, ...next });
  };
  return (
    <table
      tabIndex={0}
      aria-label={label}
      onPointerLeave={() => point?.(null)}
      onFocus={() => point?.(at)}
      onBlur={() => point?.(null)}
      onKeyDown={pressed}>
      <Numbers {...props} point={point} />
    </table>
  );
}

/** The rows of the table, with token labels if there are any. */
function Numbers({ app: { theme }, chart, grid, mark, point }: Omit<ValueTableProps, "label">) {
  const { letters } = grid.value;
  const [rowNames, columnNames] = [chart.tokens[letters.at(-2) ?? ""], chart.tokens[letters.at(-1) ?? ""]];
  const cells = useMemo(() => cellsOf(grid, theme), [grid, theme]);
  const marked = (row: number, column: number): boolean =>
    mark !== null && (mark.row === null || mark.row === row) && (mark.column === null || mark.column === column);
  const number = ({ text, style }: (typeof cells)[number][number], row: number, column: number) => {
    const enter = (): void => point?.({ matrix: 0, row, column });
    return (
      <td key={column} class={marked(row, column) ? "from" : undefined} style={style} onPointerEnter={enter}>
        {text}
      </td>
    );
  };
  return (
    <>
      {columnNames && (
        <thead>
          <tr>
            {rowNames && <td />}
            {cells[0]!.map((_, column) => (
              <th key={column} scope="col" children={columnNames[column] ?? column} />
            ))}
          </tr>
        </thead>
      )}
      <tbody>
        {cells.map((line, row) => (
          <tr key={row}>
            {rowNames && <th scope="row">{rowNames[row] ?? row}</th>}
            {line.map((cell, column) => number(cell, row, column))}
          </tr>
        ))}
      </tbody>
    </>
  );
}

type ShownNumber = { text: string; style: { background: string; color: string } | undefined };

function cellsOf(grid: Grid, theme: Theme): ShownNumber[][] {
  const { signed } = grid;
  const { scale } = grid.value;
  return Array.from({ length: grid.rows }, (_, row) =>
    Array.from({ length: grid.columns }, (_, column) => {
      const value = grid.at(0, row, column);
      const colour = colourOf(value, scale, signed, theme);
      const style = colour === null ? undefined : { background: css(colour), color: contrasting(colour) };
      return { text: short(value), style };
    }),
  );
}
