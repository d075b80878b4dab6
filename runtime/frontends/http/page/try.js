// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The form with which a model is tried, what it answers, and the same request as a command or a program.

import { infer, stream } from "./api.js";
import { html, problem } from "./dom.js";
import { inputField } from "./form.js";
import { grouped } from "./format.js";
import { showOutput, streamView } from "./result.js";
import { curl, python } from "./snippets.js";
import { STEP_TIMES } from "./timeline.js";

/** A panel of the view of a model: see model.js. */
export function tryIt({ name, version, metadata, config, isDecoupled, optional, steps }, watch) {
  const parameters = steps ? { [STEP_TIMES]: true } : {};
  const batches = config?.max_batch_size > 0;
  const fields = metadata.inputs.map((input) => inputField({ ...input, optional: optional.has(input.name) }, batches));
  const run = html("button", { type: "submit", class: "main" }, "Run");
  const stop = html("button", { type: "button", click: () => running.abort() }, "Stop");
  const note = html("span", { class: "hint", role: "status" });
  const result = html("div", { class: "result" });
  const copied = copyArea();
  let running = new AbortController();
  stop.hidden = true;

  const read = async () => (await Promise.all(fields.map((field) => field.read()))).filter(Boolean);
  const submit = async (event) => {
    event.preventDefault();
    const control = new AbortController();
    running.abort();
    running = control;
    [run.disabled, stop.hidden, note.textContent] = [true, false, "running …"];
    result.replaceChildren();
    steps?.begin();
    const begun = performance.now();
    try {
      const inputs = await read();
      const said = isDecoupled
        ? await runStream(inputs, control.signal)
        : await runInfer(inputs, control.signal);
      note.textContent = `${said} in ${grouped(performance.now() - begun)} ms`;
    } catch (error) {
      note.textContent = control.signal.aborted ? "stopped" : "failed";
      if (!control.signal.aborted) {
        result.append(problem(error));
      }
    }
    [run.disabled, stop.hidden] = [false, true];
    watch.wake();
  };
  const runInfer = async (inputs, signal) => {
    const { outputs, parameters: said } = await infer(name, version, inputs, parameters, signal);
    steps?.add(said);
    result.append(...outputs.map((output) => showOutput(output, batches)));
    return `${outputs.length} ${outputs.length === 1 ? "output" : "outputs"}`;
  };
  const runStream = async (inputs, signal) => {
    const view = streamView(metadata.outputs, batches);
    result.append(view.element);
    let count = 0;
    try {
      const hear = (document) => {
        view.hear(document);
        steps?.add(document);
      };
      await stream(name, version, inputs, parameters, hear, signal);
    } finally {
      count = view.end();
    }
    return `${count} ${count === 1 ? "response" : "responses"}`;
  };
  const copy = (write) => async () => {
    const url = new URL(".", location.href).href.replace(/\/$/, "");
    const target = { url, name, version, decoupled: isDecoupled, header: watch.restricted.inference };
    try {
      copied.show(write(target, await read()));
    } catch (error) {
      copied.fail(error);
    }
  };
  const element = html(
    "section",
    { class: "card" },
    html("h3", {}, "Try it"),
    html(
      "form",
      { submit, autocomplete: "off" },
      ...fields.map((field) => field.element),
      html(
        "p",
        { class: "actions" },
        run,
        stop,
        note,
        html("span", { class: "space" }),
        html("button", { type: "button", class: "quiet", click: copy(curl) }, "Copy as curl"),
        html("button", { type: "button", class: "quiet", click: copy(python) }, "Copy as Python"),
      ),
    ),
    copied.element,
    result,
  );
  return { element, close: () => running.abort() };
}

/** Shows a text, and puts it into the clipboard. */
export function copyArea() {
  const note = html("span", { class: "hint", role: "status" });
  const text = html("pre", { tabindex: "0", "aria-label": "Request to copy" });
  const element = html("div", { class: "copied" }, html("div", { class: "heading" }, note), text);
  element.hidden = true;
  const close = html("button", { type: "button", class: "quiet", click: () => (element.hidden = true) }, "Close");
  note.after(close);

  const show = async (what) => {
    [element.hidden, text.hidden, text.textContent] = [false, false, what];
    note.textContent = (await toClipboard(what, text)) ? "Copied." : "Select it to copy it.";
  };
  const fail = (error) => {
    [element.hidden, text.hidden, note.textContent] = [false, true, error.message];
  };
  return { element, show, fail };
}

async function toClipboard(what, element) {
  try {
    await navigator.clipboard.writeText(what);
    return true;
  } catch {
    // Without TLS, and not at localhost, there is no such object. The selection is what the user needs at least.
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}
