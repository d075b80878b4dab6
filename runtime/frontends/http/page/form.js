// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The form with which somebody tries a model: a field for each input, and what is to be sent of it.

import { html } from "./dom.js";
import { fillShape, fitShape, isFloat, isNumeric, isWide, nest, parseValues, pictureShape, product, sizeOf, unpack } from "./tensors.js";

// Values that somebody can still look through; more of them are better made up, or read from a file.
const TYPED_MAX = 256;
// What a variable dimension is at first where values are typed, and where they are made up.
const LENGTH = 16;
const WORDS = ["one", "two", "three"];
// Values that are made up, or come from a file: the tensor has 64 MiB at most, as a request has.
const VALUES_MAX = 16 << 20;

/** A field for `input`, {name, datatype, shape, optional}; `batches` if the first dimension is that of a batch. */
export function inputField(input, batches) {
  return isBare(input, batches) ? bareField(input) : tensorField(input, batches);
}

/** Whether an input is a single value, or a batch of single values. */
function isBare({ shape }, batches) {
  const dims = batches ? shape.slice(1) : shape;
  return dims.every((dim) => dim === 1);
}

function frame(input, children, read) {
  const { name, datatype, shape, optional } = input;
  const sent = html("input", { type: "checkbox", checked: !optional });
  const group = html("div", { class: "field" }, ...children);
  const show = () => {
    group.hidden = !sent.checked;
  };
  sent.addEventListener("change", show);
  show();
  const element = html(
    "fieldset",
    {},
    html("legend", {}, name, " ", html("code", {}, `${datatype} [${shape.join(", ")}]`)),
    optional ? html("label", { class: "check" }, sent, "Send this optional input") : null,
    group,
  );
  const named = async () => {
    try {
      return { name, datatype, ...(await read()) };
    } catch (error) {
      throw new Error(`${name}: ${error.message}`);
    }
  };
  return { element, read: async () => (sent.checked ? named() : null) };
}

// One value.

function bareField(input) {
  const { name, datatype, shape } = input;
  const filled = fillShape(shape, 1);
  if (datatype === "BOOL") {
    const box = html("input", { type: "checkbox", name });
    return frame(input, [html("label", { class: "check" }, box, `${name} is true`)], () => ({ shape: filled, values: [box.checked] }));
  }
  if (datatype !== "BYTES") {
    const line = html("input", { type: "text", inputmode: "decimal", value: "1", name, "aria-label": name, spellcheck: "false" });
    return frame(input, [line], () => ({ shape: filled, values: one(parseValues(line.value, datatype)) }));
  }
  const text = html("textarea", { rows: 2, name, "aria-label": name, spellcheck: "false" });
  text.value = "the quick brown fox";
  const file = fileControl(name);
  const read = async () => ({
    shape: filled,
    values: [file.files.length ? new Uint8Array(await file.files[0].arrayBuffer()) : text.value],
  });
  return frame(input, [text, html("label", { class: "file" }, "or a file ", file)], read);
}

function one(values) {
  if (values.length !== 1 || Array.isArray(values[0])) {
    throw new Error("it takes one value.");
  }
  return values;
}

// Many values.

function tensorField(input, batches) {
  const { name, datatype, shape } = input;
  const length = datatype === "BYTES" ? WORDS.length : LENGTH;
  const first = shape.map((dim, axis) => (dim !== -1 ? dim : batches && axis === 0 ? 1 : length));
  const picture = pictureTarget(input, batches);
  const typed = html("textarea", { rows: 3, name, "aria-label": `Values of ${name}`, spellcheck: "false" });
  typed.value = product(first) <= TYPED_MAX ? example(first, datatype) : "";
  const random = html("input", { type: "text", value: first.join(", "), "aria-label": `Shape of random ${name}` });
  const file = fileControl(name, picture ? "image/*,*/*" : undefined);
  const hint = picture ? "An image, whose pixels are sent" : datatype === "BYTES" ? "One element" : "The bytes of the values";
  const sources = {
    values: { title: "values", element: typed, read: () => typedValues(typed.value, input) },
    random: { title: "random values", element: html("label", {}, "of shape ", random), read: () => randomValues(random.value, input) },
    file: {
      title: "a file",
      element: html("label", { class: "file" }, `${hint}, or raw data: `, file),
      read: () => fileValues(file.files[0], input, picture),
    },
  };
  if (!isNumeric(datatype)) {
    delete sources.random;
  }
  const options = Object.entries(sources).map(([value, { title }]) => html("option", { value }, title));
  const source = html("select", { "aria-label": `Where the values of ${name} come from` }, ...options);
  source.value = typed.value ? "values" : sources.random ? "random" : "file";
  const show = () => {
    for (const [value, { element }] of Object.entries(sources)) {
      element.hidden = value !== source.value;
    }
  };
  source.addEventListener("change", show);
  show();
  const children = [source, ...Object.values(sources).map(({ element }) => element)];
  return frame(input, children, () => sources[source.value].read());
}

function typedValues(text, { datatype, shape }) {
  const nested = parseValues(text, datatype);
  return { shape: fitShape(shape, nested), values: nested.flat(Infinity) };
}

function randomValues(text, { datatype, shape }) {
  const dims = text.split(/[\s,]+/).filter(Boolean).map(Number);
  if (dims.length !== shape.length || !dims.every((dim) => Number.isInteger(dim) && dim >= 0)) {
    throw new Error(`the shape needs ${shape.length} numbers.`);
  }
  const count = product(dims);
  checkCount(count);
  const limit = datatype.endsWith("INT8") ? 128 : 1000;
  const next = {
    BOOL: () => Math.random() < 0.5,
    float: () => Math.random(),
    wide: () => BigInt(Math.floor(Math.random() * limit)),
    integer: () => Math.floor(Math.random() * limit),
  }[datatype === "BOOL" ? "BOOL" : isFloat(datatype) ? "float" : isWide(datatype) ? "wide" : "integer"];
  return { shape: dims, values: Array.from({ length: count }, next) };
}

async function fileValues(file, { datatype, shape }, picture) {
  if (!file) {
    throw new Error("choose a file.");
  }
  if (picture && file.type.startsWith("image/")) {
    return pixelValues(file, datatype, shape, picture);
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (datatype === "BYTES") {
    return { shape: fillShape(shape, 1), values: [bytes] };
  }
  checkCount(bytes.length / sizeOf(datatype));
  if (bytes.length % sizeOf(datatype)) {
    throw new Error(`the ${bytes.length} bytes of the file are no whole number of values.`);
  }
  const values = unpack(datatype, bytes);
  return { shape: fillShape(shape, values.length), values };
}

function checkCount(count) {
  if (count > VALUES_MAX) {
    throw new Error(`${count} values are too many to be sent from here.`);
  }
}

function fileControl(name, accept) {
  return html("input", { type: "file", accept, "aria-label": `File for ${name}` });
}

function example(shape, datatype) {
  const count = product(shape);
  if (datatype === "BYTES") {
    return JSON.stringify(nest(Array.from({ length: count }, (_, index) => WORDS[index % WORDS.length]), shape));
  }
  const element = datatype === "BOOL" ? (index) => index % 2 === 0 : (index) => (datatype.endsWith("INT8") ? index % 128 : index);
  return JSON.stringify(nest(Array.from({ length: count }, (_, index) => element(index)), shape)).replaceAll(",", ", ");
}

// Pictures.

/** How an input takes a picture, as `pictureShape` says; null if it does not. */
function pictureTarget({ datatype, shape }, batches) {
  const found = pictureShape(batches ? shape.slice(1) : shape) ?? (!batches && shape[0] === 1 ? pictureShape(shape.slice(1)) : null);
  // A matrix of any size is more often one than a picture.
  return (datatype === "UINT8" || datatype === "FP32") && !(found?.height === -1 && found.channels === 1) ? found : null;
}

async function pixelValues(file, datatype, shape, { rank, height, width, channels, planar }) {
  const bitmap = await createImageBitmap(file);
  const [rows, columns] = [height === -1 ? bitmap.height : height, width === -1 ? bitmap.width : width];
  checkCount(rows * columns * channels);
  const canvas = html("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, columns, rows);
  const { data } = context.getImageData(0, 0, columns, rows);
  const size = rows * columns;
  const values = new Array(size * channels);
  for (let at = 0; at < size; at++) {
    const [red, green, blue, alpha] = data.subarray(4 * at, 4 * at + 4);
    const pixel = channels === 1 ? [Math.round(0.299 * red + 0.587 * green + 0.114 * blue)] : [red, green, blue, alpha];
    for (let channel = 0; channel < channels; channel++) {
      values[planar ? channel * size + at : at * channels + channel] = datatype === "UINT8" ? pixel[channel] : pixel[channel] / 255;
    }
  }
  const own = rank === 2 ? [rows, columns] : planar ? [channels, rows, columns] : [rows, columns, channels];
  return { shape: [...Array(shape.length - rank).fill(1), ...own], values };
}
