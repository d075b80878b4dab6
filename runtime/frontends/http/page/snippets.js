// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests as commands and programs that somebody can take along. Nothing here touches the page.
//
// Inputs are [{name, datatype, shape, values}], as in tensors.js; `target` is {url, name, version, decoupled, header},
// where `header` opens the API of inference, if it needs one. Its value is never written.

import { nest, writeJson } from "./tensors.js";

// More values than these belong into a file, and not into a command.
const CURL_VALUES_MAX = 2048;
const PYTHON_VALUES_MAX = 256;
// Datatypes that JSON has no form for.
const BINARY_ONLY = ["FP16", "BF16"];
const NUMPY = {
  BOOL: "bool_", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16",
  INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BF16: "float32", BYTES: "object_",
};

/** A command for a shell. Throws where there is none. */
export function curl(target, inputs) {
  for (const { name, datatype, values } of inputs) {
    if (BINARY_ONLY.includes(datatype)) {
      throw new Error(`${name}: ${datatype} has no form in JSON. Copy it as Python.`);
    }
    if (values.length > CURL_VALUES_MAX) {
      throw new Error(`${name}: ${values.length} values are too many for a command. Copy it as Python.`);
    }
    if (values.some((value) => value instanceof Uint8Array)) {
      throw new Error(`${name}: its bytes have no form in JSON. Copy it as Python.`);
    }
  }
  const path = `${target.url}/v2/models/${encodeURIComponent(target.name)}${target.version ? `/versions/${target.version}` : ""}`;
  const parts = [`curl ${target.decoupled ? "-N " : ""}${quoted(`${path}/${target.decoupled ? "generate_stream" : "infer"}`)}`];
  if (target.header) {
    parts.push(`-H "${target.header}: $KEY"`);
  }
  parts.push("-H 'Content-Type: application/json'", `-d ${quoted(writeJson(target.decoupled ? members(inputs) : request(inputs)))}`);
  return parts.join(" \\\n  ");
}

function request(inputs) {
  return { inputs: inputs.map(({ name, datatype, shape, values }) => ({ name, datatype, shape, data: values })) };
}

/** The document of `generate`: a member for each input. */
export function members(inputs) {
  return Object.fromEntries(inputs.map(({ name, values }) => [name, values.length === 1 ? values[0] : values]));
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A program: with tritonclient, or the standard library where the model streams. */
export function python(target, inputs) {
  return target.decoupled ? pythonStream(target, inputs) : pythonInfer(target, inputs);
}

function pythonInfer({ url, name, version, header }, inputs) {
  const [scheme, address] = url.split("://");
  const lines = [
    "# pip install tritonclient[http] numpy",
    "import numpy as np",
    "import tritonclient.http as triton",
    "",
    `client = triton.InferenceServerClient(${text(address)}${scheme === "https" ? ", ssl=True" : ""})`,
    "inputs = []",
  ];
  for (const input of inputs) {
    lines.push(
      `array = ${array(input)}`,
      `inputs.append(triton.InferInput(${text(input.name)}, list(array.shape), ${text(input.datatype)}).set_data_from_numpy(array))`,
    );
  }
  const more = [version ? `, model_version=${text(version)}` : "", header ? `, headers={${text(header)}: "<its value>"}` : ""];
  lines.push(`result = client.infer(${text(name)}, inputs${more.join("")})`, 'for output in result.get_response()["outputs"]:');
  lines.push('    print(output["name"], result.as_numpy(output["name"]))');
  return lines.join("\n");
}

function pythonStream({ url, name, version, header }, inputs) {
  const path = `${url}/v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}/generate_stream`;
  const headers = `{"Content-Type": "application/json"${header ? `, ${text(header)}: "<its value>"` : ""}}`;
  const document = inputs.map((input) => `    ${text(input.name)}: ${literal(input.values.length === 1 ? input.values[0] : input.values, input.datatype)},`);
  return [
    "import json",
    "import urllib.request",
    "",
    "document = {",
    ...document,
    "}",
    `request = urllib.request.Request(${text(path)}, json.dumps(document).encode(), ${headers})`,
    "with urllib.request.urlopen(request) as response:",
    "    for line in response:",
    '        if line.startswith(b"data: "):',
    "            print(json.loads(line[6:]))",
  ].join("\n");
}

function array({ datatype, shape, values }) {
  const dtype = `np.${NUMPY[datatype]}`;
  if (values.length > PYTHON_VALUES_MAX) {
    return `np.zeros(${tuple(shape)}, ${dtype})  # put your ${values.length} values here`;
  }
  const data = `np.array(${literal(shape.length ? nest(values, shape) : values[0], datatype)}, ${dtype})`;
  return values.length ? data : `np.zeros(${tuple(shape)}, ${dtype})`;
}

function tuple(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

function text(value) {
  return JSON.stringify(value);
}

/** A value, or a list of them, as Python writes it. */
function literal(value, datatype) {
  if (Array.isArray(value)) {
    return `[${value.map((each) => literal(each, datatype)).join(", ")}]`;
  }
  if (value instanceof Uint8Array) {
    const hex = Array.from(value.subarray(0, PYTHON_VALUES_MAX), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return value.length > PYTHON_VALUES_MAX ? `b""` : `bytes.fromhex("${hex}")`;
  }
  if (typeof value === "boolean") {
    return value ? "True" : "False";
  }
  if (datatype === "BYTES") {
    return text(value);
  }
  return typeof value === "bigint" || Number.isFinite(value) ? String(value) : `float("${value}")`;
}
