// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The steps of an ensemble, and when each of them waited and ran in the last request that was tried here. The server
// says so in a parameter of the response: see docs/guides/ensembles.md.

import { html, svg } from "./dom.js";
import { duration, grouped } from "./format.js";
import { modelLink, stackedTable } from "./parts.js";

/** With it as a parameter of a request, a response has the times of the steps in a parameter of this name. */
export const STEP_TIMES = "pyruntime_step_times";

// Of a step that a stream runs more often, so many bars are drawn; the sums are those of all.
const BARS_MAX = 200;
const WIDTH = 1000;
const HEIGHT = 16;
// So wide is a bar at least, of WIDTH: it must be seen.
const BAR_MIN = 4;

/** A panel for an ensemble: {element, begin, add}; null for other models. `begin` forgets the last request, and `add`
 * takes the parameters of a response. */
export function stepTimeline(config) {
  const steps = config?.ensemble_scheduling?.step;
  if (!steps?.length) {
    return null;
  }
  const hint = html("p", { class: "hint" });
  const list = html("div", {});
  const element = html("section", { class: "card", "aria-label": "Steps" }, html("h3", {}, "Steps"), list, hint);
  let times = [];

  const draw = () => {
    const { rows, end } = rowsOf(steps, times);
    hint.textContent = times.length ? "" : "Run the model to see when each step waits and runs.";
    list.replaceChildren(stackedTable(times.length ? `The last request: ${duration(end / 1000)}` : "In the order of the configuration", ["step", "waited", "ran", "time"], rows.map((row) => cells(row, end)), "stacked timeline"));
  };
  const begin = () => {
    times = [];
    draw();
  };
  const add = (parameters) => {
    const found = parameters?.[STEP_TIMES];
    if (typeof found === "string") {
      times.push(...JSON.parse(found));
      draw();
    }
  };
  draw();
  return { element, begin, add };
}

/** The steps with what is known of them, in the order in which they began: {rows, end}. Times are in microseconds after
 * the arrival of the request. `times` are the server's, several of a step that ran several times. */
export function rowsOf(steps, times) {
  const rows = steps.map(({ model_name: model, output_map: written }, step) => {
    const runs = times.filter((each) => each.step === step).sort((one, other) => one.start_us - other.start_us);
    return {
      step,
      model,
      written: Object.values(written ?? {}),
      runs,
      waited: sum(runs, ({ start_us: start, execute_us: execute }) => execute - start),
      ran: sum(runs, ({ execute_us: execute, end_us: end }) => end - execute),
    };
  });
  const first = ({ runs }) => runs[0]?.start_us ?? Infinity;
  rows.sort((one, other) => (first(one) === first(other) ? one.step - other.step : first(one) - first(other)));
  return { rows, end: Math.max(0, ...times.map(({ end_us: end }) => end)) };
}

function sum(all, of) {
  return all.reduce((total, each) => total + of(each), 0);
}

function cells(row, end) {
  const { step, model, written, runs, waited, ran } = row;
  const about = runs.length > 1 ? `${grouped(runs.length)} times, for ` : "for ";
  const name = html("span", {}, `${step} `, html("a", { href: modelLink(model), title: `writes ${written.join(", ")}` }, model));
  if (!runs.length) {
    return [name, "–", "–", ""];
  }
  const label = `${model} waits for ${duration(waited / 1000)} and runs ${about}${duration(ran / 1000)}, from ${duration(runs[0].start_us / 1000)} on`;
  const times = runs.length > 1 ? ` in ${grouped(runs.length)}` : "";
  return [name, duration(waited / 1000), `${duration(ran / 1000)}${times}`, bars(runs, end, label)];
}

/** A drawing of the runs of one step: pale while it waits, and full while it runs. */
function bars(runs, end, label) {
  const x = (us) => (us / Math.max(1, end)) * WIDTH;
  const bar = (kind, from, to, least) => {
    const width = Math.max(least, x(to) - x(from));
    // A short bar at the very end stays within the drawing.
    return svg("rect", { class: kind, x: Math.min(x(from), WIDTH - width).toFixed(1), y: 1, width: width.toFixed(1), height: HEIGHT - 2 });
  };
  const parts = runs
    .slice(0, BARS_MAX)
    .flatMap(({ start_us: start, execute_us: execute, end_us: last }) => [
      bar("waits", start, execute, 0),
      bar("runs", execute, last, BAR_MIN),
    ]);
  const attributes = { class: "bars line-0", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label };
  return svg("svg", attributes, svg("title", {}, label), ...parts);
}
