// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What a model has answered: as values, and as a picture or a plot where it looks like one.

import { html } from "./dom.js";
import { grouped } from "./format.js";
import { drawPicture, drawPlot } from "./draw.js";
import { fillShape, formatElement, formatValues, isNumeric, lines, pictures } from "./tensors.js";

// Values that are written out. All of them are drawn.
const WRITTEN_MAX = 1000;
// So few of them are written out even beside a drawing.
const OPEN_MAX = 32;
// Pictures of a batch that are drawn.
const PICTURES_MAX = 16;
// Responses of a stream that are listed; of the first ones of a longer one it is said how many there were.
const LISTED_MAX = 500;

// How the files begin that browsers can draw.
const IMAGE_STARTS = [[0x89, 0x50, 0x4e, 0x47], [0xff, 0xd8, 0xff], [0x47, 0x49, 0x46, 0x38], [0x52, 0x49, 0x46, 0x46]];

/** One output, {name, datatype, shape, values}. */
export function showOutput(output, batches) {
  const { name, datatype, shape, values } = output;
  const written = formatValues(values, shape, datatype, WRITTEN_MAX);
  const isLong = values.length > WRITTEN_MAX;
  const title = isLong ? `The first ${grouped(WRITTEN_MAX)} of ${grouped(values.length)} values` : "Values";
  const drawing = draw(output, batches);
  const text = html("pre", { tabindex: "0", "aria-label": `Values of ${name}` }, written);
  return html(
    "section",
    { class: "output" },
    html("h4", {}, name, " ", html("code", {}, `${datatype} [${shape.join(", ")}]`)),
    drawing,
    drawing || isLong
      ? html("details", { open: !drawing || values.length <= OPEN_MAX }, html("summary", {}, title), text)
      : text,
  );
}

function draw({ name, datatype, shape, values }, batches) {
  const found = pictures(datatype, shape, values, batches);
  if (found.length) {
    const shown = found.slice(0, PICTURES_MAX).map((picture, index) => drawPicture(picture, `${name}, picture ${index + 1} of ${found.length}`));
    return html("div", { class: "pictures" }, ...shown);
  }
  const series = lines(datatype, shape, values, batches);
  if (series.length) {
    return drawPlot(series, name);
  }
  const images = values.filter(isImage).slice(0, PICTURES_MAX);
  return images.length ? html("div", { class: "pictures" }, ...images.map((image) => drawFile(image, name))) : null;
}

function isImage(value) {
  return value instanceof Uint8Array && IMAGE_STARTS.some((start) => start.every((byte, at) => value[at] === byte));
}

function drawFile(bytes, name) {
  const canvas = html("canvas", { width: 1, height: 1, role: "img", "aria-label": `${name}, an image`, class: "picture" });
  createImageBitmap(new Blob([bytes])).then(
    (bitmap) => {
      [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
      canvas.getContext("2d").drawImage(bitmap, 0, 0);
    },
    () => canvas.replaceWith(html("p", { class: "hint" }, "The image cannot be shown.")),
  );
  return canvas;
}

/** The responses to one request as they come: `hear` takes each, `end` is for when there are no more. */
export function streamView(outputs, batches) {
  const text = html("p", { class: "stream", tabindex: "0", "aria-label": "Text so far" });
  const head = html("tr", {}, ...["#", "ms", ...outputs.map(({ name }) => name)].map((title) => html("th", { scope: "col" }, title)));
  const body = html("tbody", {});
  const drawings = html("div", {});
  const table = html("div", { class: "scroll" }, html("table", {}, html("caption", {}, "Responses"), html("thead", {}, head), body));
  const begun = performance.now();
  const heard = new Map(outputs.map(({ name }) => [name, []]));
  let count = 0;
  text.hidden = true;

  const hear = (document) => {
    count += 1;
    const cells = [String(count), (performance.now() - begun).toFixed(0)];
    for (const { name, datatype } of outputs) {
      const value = document[name];
      if (value !== undefined) {
        heard.get(name).push(value);
      }
      if (datatype === "BYTES" && typeof value === "string") {
        text.hidden = false;
        text.append(`${text.textContent ? " " : ""}${value}`);
      }
      cells.push(value === undefined ? "" : brief(value, datatype));
    }
    if (count <= LISTED_MAX) {
      body.append(html("tr", {}, ...cells.map((cell) => html("td", {}, cell))));
    }
  };
  const end = () => {
    drawings.append(...outputs.map((output) => drawHeard(output, heard.get(output.name), batches)).filter(Boolean));
    return count;
  };
  return { element: html("div", {}, text, drawings, table), hear, end };
}

/** What an output was over a whole stream: a line where it is a number each time, else the last of it. */
function drawHeard({ name, datatype, shape }, values, batches) {
  if (values.length > 1 && isNumeric(datatype) && !values.some(Array.isArray)) {
    return html("section", { class: "output" }, html("h4", {}, name), drawPlot([values.map(Number)], name));
  }
  const last = values.at(-1);
  if (!Array.isArray(last)) {
    return null;
  }
  const output = { name, datatype, shape: shapeHeard(shape, last.length), values: last };
  const drawing = draw(output, batches);
  return drawing && html("section", { class: "output" }, html("h4", {}, `${name}, the last`), drawing);
}

/** Streams say nothing of shapes, so it is that of the configuration, or a plain list where that does not fit. */
function shapeHeard(shape, count) {
  try {
    return fillShape(shape, count);
  } catch {
    return [count];
  }
}

function brief(value, datatype) {
  if (!Array.isArray(value)) {
    return formatElement(value, datatype);
  }
  return value.length > 8 ? `${value.length} values` : value.map((each) => formatElement(each, datatype)).join(", ");
}
