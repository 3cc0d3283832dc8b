// The numbers of the chosen token, at the bottom of a phone: the list of weights is below the text.

import { figure } from "./format.ts";

type Reading = { name: string; position: number | null; weight: number };

const MOST = 3;

export function Readout({ name, readings }: { name: string; readings: readonly Reading[] }) {
  return (
    <p class="readout" aria-hidden="true">
      <b>{name}</b>
      {readings.slice(0, MOST).map((one, index) => (
        <span key={index}>
          {one.name}
          {one.position !== null && <small>{one.position}</small>} <em>{figure(one.weight)}</em>
        </span>
      ))}
    </p>
  );
}
