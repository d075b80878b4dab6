// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Pictures on canvases and series as drawings.

import { html, svg } from "./dom.js";
import { grouped } from "./format.js";

// Small pictures are shown larger, up to this width.
const WIDTH_MAX = 384;
// Points of a line that are drawn: more than there are pixels shows nothing more. An even number: see `thin`.
const POINTS_MAX = 1200;
// So few points are marked one by one.
const MARKED_MAX = 40;
const PLOT = { width: 640, height: 220, left: 56, right: 12, top: 12, bottom: 28 };

/** A picture as `pictures` finds it, on a canvas. */
export function drawPicture(picture, title) {
  const { height, width, channels, planar, scale, values } = picture;
  const canvas = html("canvas", { width, height, role: "img", "aria-label": title, class: "picture" });
  const pixels = new ImageData(width, height);
  const size = height * width;
  for (let at = 0; at < size; at++) {
    const value = (channel) => values[planar ? channel * size + at : at * channels + channel] * scale;
    for (let channel = 0; channel < 3; channel++) {
      pixels.data[4 * at + channel] = value(channels < 3 ? 0 : channel);
    }
    pixels.data[4 * at + 3] = channels === 4 ? value(3) : 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  canvas.style.width = `${width * Math.max(1, Math.floor(WIDTH_MAX / width))}px`;
  return canvas;
}

/** Lines of numbers as a plot. */
export function drawPlot(lines, title) {
  const finite = lines.flat().filter(Number.isFinite);
  if (!finite.length) {
    return html("p", { class: "hint" }, "No value is finite.");
  }
  const [low, high] = extent(finite);
  const length = lines[0].length;
  const x = scale(0, length - 1, PLOT.left, PLOT.width - PLOT.right);
  const ticks = ticksOf(low, high);
  const y = scale(Math.min(low, ticks[0]), Math.max(high, ticks.at(-1)), PLOT.height - PLOT.bottom, PLOT.top);
  const label = `${title}: ${grouped(length)} values from ${grouped(low)} to ${grouped(high)}`;
  const drawing = svg("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img", "aria-label": label, class: "plot" });
  for (const tick of ticks) {
    drawing.append(
      svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: PLOT.left - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick)),
    );
  }
  for (const tick of ticksOf(0, length - 1).filter((each) => Number.isInteger(each) && each < length)) {
    drawing.append(svg("text", { x: x(tick), y: PLOT.height - 8, "text-anchor": "middle" }, short(tick)));
  }
  lines.forEach((line, index) => drawing.append(...drawLine(line, index, x, y)));
  return html("figure", {}, drawing, lines.length > 1 ? legend(lines.length) : null);
}

function drawLine(line, index, x, y) {
  const parts = [];
  let points = [];
  const end = () => {
    if (points.length) {
      parts.push(svg("polyline", { class: `line line-${index}`, points: points.join(" ") }));
    }
    points = [];
  };
  for (const [at, value] of thin(line)) {
    if (Number.isFinite(value)) {
      points.push(`${x(at).toFixed(1)},${y(value).toFixed(1)}`);
    } else {
      end();
    }
  }
  end();
  if (line.length <= MARKED_MAX) {
    line.forEach((value, at) => {
      if (Number.isFinite(value)) {
        parts.push(svg("circle", { class: `mark line-${index}`, cx: x(at), cy: y(value), r: 2.6 }));
      }
    });
  }
  return parts;
}

/** [[position, value]] of a line: all of them, or the least and the greatest of each of many stretches. */
function thin(line) {
  if (line.length <= POINTS_MAX) {
    return line.map((value, at) => [at, value]);
  }
  const points = [];
  const stretches = POINTS_MAX / 2;
  for (let stretch = 0; stretch < stretches; stretch++) {
    const [from, to] = [stretch, stretch + 1].map((each) => Math.floor((each * line.length) / stretches));
    let [least, greatest] = [from, from];
    for (let at = from; at < to; at++) {
      least = line[at] < line[least] ? at : least;
      greatest = line[at] > line[greatest] ? at : greatest;
    }
    points.push(...[least, greatest].sort((a, b) => a - b).map((at) => [at, line[at]]));
  }
  return points;
}

function legend(count) {
  const entries = Array.from({ length: count }, (_, index) => html("li", { class: `key line-${index}` }, String(index)));
  return html("ul", { class: "legend", "aria-label": "Lines" }, ...entries);
}

function extent(values) {
  let [low, high] = [values[0], values[0]];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

function scale(from, to, start, end) {
  return to === from ? () => (start + end) / 2 : (value) => start + ((value - from) / (to - from)) * (end - start);
}

/** Some four round numbers that span what lies between two others. */
function ticksOf(low, high) {
  if (low === high) {
    return [low];
  }
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

function short(number) {
  return Math.abs(number) >= 1e6 || (number !== 0 && Math.abs(number) < 1e-3) ? number.toExponential(1) : String(number);
}
