// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Plots over the last minutes, which are drawn anew with every point; and the small ones in tables.

import { html, svg } from "./dom.js";
import { clock } from "./format.js";
import { SPAN_MS } from "./history.js";

const HEIGHT = 140;
const MARGIN = { left: 46, right: 8, top: 8, bottom: 20 };
// The time that a plot spans at least, in milliseconds; more as there are points for it.
const SPAN_MS_MIN = 2 * 60_000;
// A line has a gap where no point came for this time, in milliseconds.
const GAP_MS = 15_000;
const SPARK = { width: 96, height: 22 };

/** A plot with a title. `series` are [{name, of}], where `of` takes a point to a number or null; `show` writes one.
 * Returns {element, update}; `update` takes all points and the current time. */
export function timeChart(title, series, show) {
  const drawing = svg("svg", { class: "chart", role: "img", "aria-label": title });
  const values = series.map(() => html("span", { class: "value" }));
  const time = html("span", { class: "time" });
  const keys = series.map(({ name }, index) => html("li", { class: `key line-${index}` }, html("span", { class: "label" }, `${name} `), values[index]));
  const element = html(
    "figure",
    { class: "timechart" },
    html("figcaption", {}, html("span", { class: "title" }, title), time),
    drawing,
    html("ul", { class: "readings" }, ...keys),
  );
  let points = [];
  let now = 0;
  let pointed = null;

  const draw = () => {
    const width = Math.max(240, drawing.clientWidth || 480);
    const span = spanOf(points, now);
    const x = (at) => MARGIN.left + (1 - (now - at) / span) * (width - MARGIN.left - MARGIN.right);
    const found = points.flatMap((point) => series.map(({ of }) => of(point))).filter((value) => value !== null);
    const top = niceAbove(Math.max(0, ...found));
    const y = (value) => MARGIN.top + (1 - value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = [0, top / 2, top].flatMap((tick) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick, show)),
    ]);
    const step = span > 5 * 60_000 ? 2 : span > SPAN_MS_MIN ? 1 : 0.5;
    for (let minutes = 0; minutes * 60_000 < span * 0.97; minutes += step) {
      const label = minutes ? (minutes < 1 ? "−30 s" : `−${minutes} min`) : "now";
      parts.push(svg("text", { x: x(now - minutes * 60_000), y: HEIGHT - 5, "text-anchor": minutes ? "middle" : "end" }, label));
    }
    series.forEach(({ of }, index) => parts.push(...curves(points, of, x, y, `line-${index}`)));
    const chosen = pointed === null ? points.at(-1) : nearest(points, x, pointed);
    if (chosen && pointed !== null) {
      parts.push(svg("line", { class: "cursor", x1: x(chosen.at), x2: x(chosen.at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    }
    drawing.replaceChildren(...parts);
    series.forEach(({ of }, index) => (values[index].textContent = chosen ? show(of(chosen)) : "–"));
    time.textContent = chosen && pointed !== null ? clock(chosen.at) : "";
    const said = series.map(({ name, of }) => `${name} ${points.length ? show(of(points.at(-1))) : "–"}`).join(", ");
    drawing.setAttribute("aria-label", `${title} over the last minutes; now: ${said}`);
  };
  const point = (event) => {
    const box = drawing.getBoundingClientRect();
    pointed = event.type === "pointerleave" ? null : event.clientX - box.left;
    draw();
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerleave", point);
  new ResizeObserver(draw).observe(drawing);
  const update = (all, at) => {
    [points, now] = [all, at];
    draw();
  };
  return { element, update };
}

/** A small line without axes. */
export function sparkline(points, of, now, label) {
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, role: "img", "aria-label": label });
  const most = Math.max(0, ...points.map((point) => of(point) ?? 0));
  const top = most || 1;
  const x = (at) => (1 - (now - at) / spanOf(points, now)) * SPARK.width;
  const y = (value) => 2 + (1 - value / top) * (SPARK.height - 4);
  drawing.append(...curves(points, of, x, y, most ? "line-0" : "idle"));
  return drawing;
}

function spanOf(points, now) {
  return Math.min(SPAN_MS, Math.max(SPAN_MS_MIN, now - (points[0]?.at ?? now)));
}

/** The polylines of a series, and the area below each. */
function curves(points, of, x, y, kind) {
  const runs = [[]];
  let last = 0;
  for (const point of points) {
    const value = of(point);
    if (value === null || point.at - last > GAP_MS) {
      runs.push([]);
    }
    if (value !== null) {
      runs.at(-1).push([x(point.at), y(value)]);
    }
    last = point.at;
  }
  return runs.filter((run) => run.length).flatMap((run) => {
    const path = run.map(([at, value]) => `${at.toFixed(1)},${value.toFixed(1)}`);
    const [from, to] = [run[0][0].toFixed(1), run.at(-1)[0].toFixed(1)];
    if (run.length === 1) {
      return [svg("line", { class: `line ${kind}`, x1: from, x2: from, y1: run[0][1], y2: run[0][1] })];
    }
    return [
      svg("polygon", { class: `area ${kind}`, points: `${from},${y(0).toFixed(1)} ${path.join(" ")} ${to},${y(0).toFixed(1)}` }),
      svg("polyline", { class: `line ${kind}`, points: path.join(" ") }),
    ];
  });
}

function nearest(points, x, at) {
  return points.reduce((best, point) => (!best || Math.abs(x(point.at) - at) < Math.abs(x(best.at) - at) ? point : best), null);
}

/** A round number that is not below `value`. */
export function niceAbove(value) {
  if (value <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((each) => each * power >= value) * power;
}

function tickText(tick, show) {
  return tick === 0 ? "0" : show(tick);
}
