// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What the page asks of the server: the same protocol that all clients speak. Paths are relative, so that the server may
// stand behind a proxy that has given it a folder.

import { members } from "./snippets.js";
import { pack, parseJson, unpack, writeJson } from "./tensors.js";

/** The path of a model, or of one of its versions. */
export function modelPath(name, version, what = "") {
  return `v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}${what && `/${what}`}`;
}

/** The document at a path. Throws what the server says where it is an error. */
export async function ask(path, options = {}) {
  const response = await send(path, options);
  return parseJson(await response.text());
}

/** The document that answers another one, or undefined where the answer is empty. Throws as `ask`. */
export async function post(path, document, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await send(path, { method: "POST", headers, body: writeJson(document), signal });
  const text = await response.text();
  return text ? parseJson(text) : undefined;
}

// The values of headers that open restricted APIs, as the user gave them. They are kept in memory only, and so they are
// gone with the page.
const keys = new Map();

/** Send a header with every request from now on. */
export function useKey(header, value) {
  keys.set(header, value);
}

/** A request with the keys. Resolves to the response, of whatever status. */
export function request(path, options = {}) {
  return fetch(path, { ...options, headers: { ...options.headers, ...Object.fromEntries(keys) } });
}

async function send(path, options) {
  const response = await request(path, options);
  if (!response.ok) {
    throw await refusal(response);
  }
  return response;
}

async function refusal(response) {
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error ?? text;
  } catch {
    // Somebody between us and the server may have said it in words of his own.
  }
  const error = new Error(`${response.status}: ${message || response.statusText}`);
  // The name of the header that a restricted API needs.
  error.header = response.status === 403 ? /expecting header '(.+)'/.exec(message)?.[1] : undefined;
  return error;
}

/** One inference: {outputs, parameters} for inputs and parameters. Inputs and outputs are [{name, datatype, shape, values}];
 * contents travel as binary data. */
export async function infer(name, version, inputs, parameters, signal) {
  const parts = inputs.map(packInput);
  const document = writeJson({
    parameters: { ...parameters, binary_data_output: true },
    inputs: inputs.map(({ name, datatype, shape }, index) => ({
      name,
      datatype,
      shape,
      parameters: { binary_data_size: parts[index].length },
    })),
  });
  const head = new TextEncoder().encode(document);
  const response = await send(modelPath(name, version, "infer"), {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(head.length) },
    body: new Blob([head, ...parts]),
    signal,
  });
  return readResponse(response);
}

function packInput({ name, datatype, values }) {
  try {
    return pack(datatype, values);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

async function readResponse(response) {
  const body = new Uint8Array(await response.arrayBuffer());
  const length = Number(response.headers.get("Inference-Header-Content-Length") ?? body.length);
  const document = parseJson(new TextDecoder().decode(body.subarray(0, length)));
  let at = length;
  const outputs = document.outputs.map(({ name, datatype, shape, parameters }) => {
    const end = at + (parameters?.binary_data_size ?? 0);
    const values = unpack(datatype, body.subarray(at, end));
    at = end;
    return { name, datatype, shape, values };
  });
  return { outputs, parameters: document.parameters ?? {} };
}

/** A request that is answered any number of times: `hear` is called with each response. Throws at an error. */
export async function stream(name, version, inputs, parameters, hear, signal) {
  const response = await request(modelPath(name, version, "generate_stream"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: writeJson({ ...members(inputs), ...(Object.keys(parameters).length ? { parameters } : {}) }),
    signal,
  });
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    throw await refusal(response);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const document = parseJson(event.replace(/^data: /, ""));
      if ("error" in document && !("model_name" in document)) {
        throw new Error(document.error);
      }
      hear(document);
    }
  }
}
