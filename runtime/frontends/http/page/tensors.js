// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors: their bytes, their values, their shapes, and what they look like. Nothing here touches the page.
//
// Values are in one list, in row-major order: numbers, bigints for 64-bit integers, booleans, and strings for BYTES, or
// a Uint8Array where an element is no text.

const ARRAYS = {
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP32: Float32Array,
  FP64: Float64Array,
};
const FLOATS = ["FP16", "BF16", "FP32", "FP64"];
const SIZES = { BOOL: 1, FP16: 2, BF16: 2 };

// A picture has sides between these: what is smaller is a matrix, what is larger no screen shows.
const SIDE_MIN = 8;
const SIDE_MAX = 4096;
// The lines of a plot that can still be told apart.
export const LINES_MAX = 8;

export const isFloat = (datatype) => FLOATS.includes(datatype);
export const isWide = (datatype) => datatype === "INT64" || datatype === "UINT64";
export const isNumeric = (datatype) => datatype in ARRAYS || isFloat(datatype);
export const product = (shape) => shape.reduce((left, right) => left * right, 1);

/** Bytes of an element, 0 for BYTES. */
export function sizeOf(datatype) {
  return SIZES[datatype] ?? ARRAYS[datatype]?.BYTES_PER_ELEMENT ?? 0;
}

// Text.

/** JSON, with integers that a double cannot hold as bigints, and NaN and Infinity as strings. */
export function parseJson(text) {
  const read = (each) =>
    JSON.parse(each, (_, value, context) =>
      typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
        ? BigInt(context.source)
        : value,
    );
  try {
    return read(text);
  } catch {
    return read(text.replace(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (part) => (part[0] === '"' ? part : `"${part}"`)));
  }
}

/** A value as JSON. */
export function writeJson(value) {
  if (Array.isArray(value)) {
    return `[${value.map(writeJson).join(",")}]`;
  }
  if (value !== null && typeof value === "object") {
    const members = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}:${writeJson(each)}`);
    return `{${members.join(",")}}`;
  }
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** A value as JSON for people: indented, with lists of plain values in one line. */
export function formatJson(value, indent = "") {
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    const isFlat = value.every((each) => each === null || typeof each !== "object");
    const parts = value.map((each) => formatJson(each, inner));
    return isFlat ? `[${parts.join(", ")}]` : `[\n${inner}${parts.join(`,\n${inner}`)}\n${indent}]`;
  }
  if (value !== null && typeof value === "object") {
    const parts = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${formatJson(each, inner)}`);
    return parts.length ? `{\n${inner}${parts.join(`,\n${inner}`)}\n${indent}}` : "{}";
  }
  return writeJson(value);
}

/** What somebody typed for a tensor: JSON, or elements with commas or spaces between them; text as it is for BYTES. */
export function parseValues(text, datatype) {
  const trimmed = text.trim();
  if (trimmed.startsWith("[")) {
    return parseJson(trimmed);
  }
  if (datatype === "BYTES") {
    return [text];
  }
  return trimmed === "" ? [] : parseJson(`[${trimmed.split(/[\s,]+/).join(",")}]`);
}

/** One element in few digits. */
export function formatElement(value, datatype) {
  if (value instanceof Uint8Array) {
    return `<${value.length} bytes>`;
  }
  if (typeof value === "string") {
    return JSON.stringify(value);
  }
  if (isFloat(datatype) && datatype !== "FP64" && Number.isFinite(value)) {
    for (let digits = 6; digits < 9; digits++) {
      const shorter = Number(value.toPrecision(digits));
      if (Math.fround(shorter) === Math.fround(value)) {
        return String(shorter);
      }
    }
  }
  return String(value);
}

/** The first `limit` values in brackets as their shape says, a line for each of the last dimension. */
export function formatValues(values, shape, datatype, limit) {
  let position = 0;
  const shown = Math.min(values.length, limit);
  const write = (axis, indent) => {
    if (axis === shape.length) {
      return formatElement(values[position++], datatype);
    }
    const parts = [];
    for (let index = 0; index < shape[axis] && position < shown; index++) {
      parts.push(write(axis + 1, `${indent} `));
    }
    if (parts.length < shape[axis]) {
      parts.push("…");
    }
    return `[${parts.join(axis === shape.length - 1 ? ", " : `,\n${indent} `)}]`;
  };
  return product(shape) === values.length ? write(0, "") : values.slice(0, limit).map((each) => formatElement(each, datatype)).join(", ");
}

// Shapes.

/** The shape of nested lists. Throws where they are not all of one length. */
export function shapeOf(nested) {
  if (!Array.isArray(nested)) {
    return [];
  }
  const inner = nested.map(shapeOf);
  if (inner.some((shape) => String(shape) !== String(inner[0]))) {
    throw new Error("The lists are not of equal lengths.");
  }
  return [nested.length, ...(inner[0] ?? [])];
}

/** The shape of `count` elements where `wanted` has -1: the last of these takes what there is, the others are 1. */
export function fillShape(wanted, count) {
  const fixed = product(wanted.filter((dim) => dim !== -1));
  let left = fixed ? count / fixed : 1;
  const shape = wanted.map((dim) => dim);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    if (shape[axis] === -1) {
      shape[axis] = left;
      left = 1;
    }
  }
  if (left !== 1 || !shape.every(Number.isInteger) || product(shape) !== count) {
    throw new Error(`${count} values do not make the shape [${wanted.join(", ")}].`);
  }
  return shape;
}

/** The shape of what somebody typed: its own if it is nested as the tensor is, else as `fillShape`. */
export function fitShape(wanted, nested) {
  const own = shapeOf(nested);
  if (own.length === wanted.length && wanted.every((dim, axis) => dim === -1 || dim === own[axis])) {
    return own;
  }
  return fillShape(wanted, product(own));
}

/** Values in one list, as nested lists of a shape. */
export function nest(values, shape) {
  if (shape.length <= 1) {
    return values;
  }
  const size = values.length / shape[0];
  return Array.from({ length: shape[0] }, (_, index) => nest(values.slice(index * size, (index + 1) * size), shape.slice(1)));
}

// Bytes.

/** The bytes of a tensor with these values. Throws for a value that the datatype does not have. */
export function pack(datatype, values) {
  if (datatype === "BYTES") {
    return packStrings(values);
  }
  if (datatype === "BOOL") {
    return Uint8Array.from(values, (value) => {
      if (typeof value !== "boolean" && value !== 0 && value !== 1) {
        throw new Error(`${value} is not true or false.`);
      }
      return Number(value);
    });
  }
  const wide = isWide(datatype);
  const numbers = values.map((value) => number(value, datatype, wide));
  if (datatype === "FP16" || datatype === "BF16") {
    return bytesOf(Uint16Array.from(numbers, datatype === "FP16" ? toHalf : toBrain));
  }
  const array = ARRAYS[datatype].from(numbers);
  if (!isFloat(datatype)) {
    const wrong = numbers.findIndex((value, index) => array[index] !== value);
    if (wrong >= 0) {
      throw new Error(`${numbers[wrong]} is out of range for ${datatype}.`);
    }
  }
  return bytesOf(array);
}

function number(value, datatype, wide) {
  const found = value === "NaN" || value === "Infinity" || value === "-Infinity" ? Number(value) : value;
  if (typeof found !== "number" && typeof found !== "bigint") {
    throw new Error(`${JSON.stringify(value)} is not a number.`);
  }
  if (!isFloat(datatype) && typeof found === "number" && !Number.isInteger(found)) {
    throw new Error(`${found} is not an integer.`);
  }
  return wide ? BigInt(found) : Number(found);
}

function packStrings(values) {
  const encoder = new TextEncoder();
  const parts = values.map((value) => (value instanceof Uint8Array ? value : encoder.encode(text(value))));
  const packed = new Uint8Array(parts.reduce((size, part) => size + 4 + part.length, 0));
  const view = new DataView(packed.buffer);
  let at = 0;
  for (const part of parts) {
    view.setUint32(at, part.length, true);
    packed.set(part, at + 4);
    at += 4 + part.length;
  }
  return packed;
}

function text(value) {
  if (typeof value !== "string") {
    throw new Error(`${JSON.stringify(value)} is not a string: strings stand in double quotes.`);
  }
  return value;
}

/** The values in a tensor's bytes. */
export function unpack(datatype, bytes) {
  if (datatype === "BYTES") {
    return unpackStrings(bytes);
  }
  // A copy, because typed arrays must lie at multiples of their elements' size.
  const aligned = bytes.slice().buffer;
  if (datatype === "BOOL") {
    return Array.from(new Uint8Array(aligned), Boolean);
  }
  if (datatype === "FP16" || datatype === "BF16") {
    return Array.from(new Uint16Array(aligned), datatype === "FP16" ? fromHalf : fromBrain);
  }
  return Array.from(new ARRAYS[datatype](aligned));
}

function unpackStrings(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const values = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + 4 + view.getUint32(at, true);
    const element = bytes.slice(at + 4, end);
    try {
      values.push(decoder.decode(element));
    } catch {
      values.push(element);
    }
    at = end;
  }
  return values;
}

function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

function toBrain(value) {
  if (Number.isNaN(value)) {
    return 0x7fc0;
  }
  const [bits] = new Uint32Array(Float32Array.of(value).buffer);
  // To the nearest, and to an even one if there are two.
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function fromBrain(bits) {
  return new Float32Array(Uint32Array.of(bits << 16).buffer)[0];
}

function toHalf(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(size)) {
    return 0x7e00;
  }
  if (size >= 65520) {
    return sign | 0x7c00;
  }
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 2 ** -14)));
  // In units of the last of ten bits; what rounds up to 2048 is the next exponent, and so is its sum.
  const units = roundEven(size / 2 ** (exponent - 10));
  return units < 1024 ? sign | units : sign | (((exponent + 15) << 10) + (units - 1024));
}

function roundEven(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) {
    return fraction ? NaN : sign * Infinity;
  }
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// What it looks like.

/** How a shape is that of a picture, which may have -1: {rank, height, width, channels, planar}; null if it is not. */
export function pictureShape(dims) {
  const isSide = (dim) => dim === -1 || (dim >= SIDE_MIN && dim <= SIDE_MAX);
  const isColour = (dim) => [1, 3, 4].includes(dim);
  if (dims.length === 2 && dims.every(isSide)) {
    return { rank: 2, height: dims[0], width: dims[1], channels: 1, planar: false };
  }
  if (dims.length === 3 && isColour(dims[2]) && isSide(dims[0]) && isSide(dims[1])) {
    return { rank: 3, height: dims[0], width: dims[1], channels: dims[2], planar: false };
  }
  if (dims.length === 3 && isColour(dims[0]) && isSide(dims[1]) && isSide(dims[2])) {
    return { rank: 3, height: dims[1], width: dims[2], channels: dims[0], planar: true };
  }
  return null;
}

/** The pictures that a tensor is, of those that `batches` say one for each row: [{..., values}], [] if it is none. */
export function pictures(datatype, shape, values, batches) {
  const isBytes = datatype === "UINT8";
  if (!isBytes && !(datatype === "FP32" && values.every((value) => value >= 0 && value <= 1))) {
    return [];
  }
  const whole = batches ? null : pictureShape(shape);
  const found = whole ?? pictureShape(shape.slice(1));
  if (!found || !values.length) {
    return [];
  }
  const size = found.height * found.width * found.channels;
  const made = [];
  for (let at = 0; at < values.length; at += size) {
    made.push({ ...found, scale: isBytes ? 1 : 255, values: values.slice(at, at + size) });
  }
  return made;
}

/** The lines of a plot of a tensor, each a list of numbers; [] if it is no series. */
export function lines(datatype, shape, values, batches) {
  if (!isNumeric(datatype)) {
    return [];
  }
  const isRow = shape.length === 2 && (shape[0] === 1 || batches);
  const [length, count] = isRow ? [shape[1], shape[0]] : [shape[0], shape[1] ?? 1];
  if (shape.length < 1 || shape.length > 2 || length < 2 || count < 1 || count > LINES_MAX) {
    return [];
  }
  const at = isRow ? (line, index) => line * length + index : (line, index) => index * count + line;
  return Array.from({ length: count }, (_, line) => Array.from({ length }, (_, index) => Number(values[at(line, index)])));
}
