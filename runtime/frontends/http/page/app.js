// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The page: the list of models, and of the one that is chosen its inputs and outputs, a form to try it, its statistics
// and its configuration. Which one is chosen stands behind the # of the address, as #/<model>/<version>.

import { ask, infer, isReady, modelPath, stream } from "./api.js";
import { grouped, html, problem, table } from "./dom.js";
import { inputField } from "./form.js";
import { showOutput, streamView } from "./result.js";

const byId = (id) => document.getElementById(id);
const [list, filter, main] = [byId("models"), byId("filter"), byId("main")];

// Rows of the repository index by model, in its order.
let index = new Map();
// Grows with each model that is chosen: an answer about one that is chosen no longer is dropped.
let turn = 0;
// Ends the request that is under way.
let running = new AbortController();

const chosen = () => {
  const [name = "", version = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  return { name, version };
};

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// The list.

async function showServer() {
  const [about, ready] = await Promise.allSettled([ask("v2"), isReady()]);
  if (about.value) {
    byId("server").replaceChildren(about.value.name, " ", html("small", {}, about.value.version));
    document.title = `${about.value.name} – models`;
  }
  const isUp = ready.value === true;
  byId("readiness").textContent = isUp ? "ready" : "not ready";
  byId("readiness").dataset.state = isUp ? "READY" : "UNAVAILABLE";
}

async function showList() {
  try {
    const rows = await ask("v2/repository/index", { method: "POST" });
    index = Map.groupBy ? Map.groupBy(rows, (row) => row.name) : groupByName(rows);
    drawList();
  } catch (error) {
    list.replaceChildren(html("li", {}, problem(error)));
  }
}

function groupByName(rows) {
  const groups = new Map();
  for (const row of rows) {
    groups.set(row.name, [...(groups.get(row.name) ?? []), row]);
  }
  return groups;
}

function drawList() {
  const wanted = filter.value.trim().toLowerCase();
  const { name: current } = chosen();
  const entries = [...index].filter(([name]) => name.toLowerCase().includes(wanted));
  const made = entries.map(([name, rows]) => {
    const state = rows.some((row) => row.state === "READY") ? "READY" : rows.at(-1).state || "UNKNOWN";
    const link = html(
      "a",
      { href: `#/${encodeURIComponent(name)}`, "aria-current": name === current && "page" },
      html("span", { class: "name" }, name),
      html("span", { class: "badge", "data-state": state }, state.toLowerCase()),
    );
    return html("li", {}, link);
  });
  list.replaceChildren(...(made.length ? made : [html("li", { class: "hint" }, "There is none.")]));
}

// One model.

async function showModel(focus) {
  running.abort();
  const mine = ++turn;
  const { name, version } = chosen();
  drawList();
  if (!name) {
    main.replaceChildren(html("p", { class: "hint" }, "Choose a model."));
    return;
  }
  const [metadata, config] = await Promise.allSettled([
    ask(modelPath(name, version)),
    ask(modelPath(name, version, "config")),
  ]);
  if (mine !== turn) {
    return;
  }
  const model = { name, version, metadata: metadata.value, config: config.value };
  const heading = html("h2", { tabindex: "-1" }, name);
  const statistics = html("section", { class: "card", "aria-labelledby": "statistics" });
  const parts = [heading, states(model)];
  for (const outcome of [metadata, config]) {
    if (outcome.reason) {
      parts.push(problem(outcome.reason));
    }
  }
  if (model.metadata) {
    parts.push(tryIt(model, () => showStatistics(model, statistics)), interfaceCard(model), statistics);
  }
  if (model.config) {
    const text = html("pre", { tabindex: "0", "aria-label": "Configuration" }, JSON.stringify(model.config, null, 2));
    parts.push(html("details", { class: "card" }, html("summary", {}, html("h3", {}, "Configuration")), text));
  }
  main.replaceChildren(...parts);
  if (focus) {
    heading.focus();
  }
  if (model.metadata) {
    await showStatistics(model, statistics);
  }
}

function states({ name, version, config, metadata }) {
  const rows = index.get(name) ?? [];
  const current = version || metadata?.versions?.at(-1);
  const versions = rows.map((row) =>
    html(
      "a",
      {
        class: "version",
        href: `#/${encodeURIComponent(name)}/${row.version ?? ""}`,
        "aria-current": row.version === current && "true",
      },
      row.version ? `version ${row.version} ` : "",
      html("span", { class: "badge", "data-state": row.state || "UNKNOWN" }, (row.state || "unknown").toLowerCase()),
    ),
  );
  const facts = config
    ? [
        config.backend || config.platform,
        config.max_batch_size > 0 ? `batches of up to ${config.max_batch_size}` : "no batches",
        isDecoupled(config) ? "decoupled: any number of responses" : null,
      ].filter(Boolean)
    : [];
  const reasons = rows.filter((row) => row.reason).map((row) => html("p", { class: "problem" }, row.reason));
  return html(
    "div",
    { class: "states" },
    html("p", {}, ...versions),
    html("p", { class: "hint" }, facts.join(" · ")),
    ...reasons,
  );
}

function isDecoupled(config) {
  return config?.model_transaction_policy?.decoupled === true;
}

function interfaceCard({ metadata, config }) {
  const optional = optionalNames(config);
  const rows = (tensors, kind) =>
    tensors.map(({ name, datatype, shape }) => [
      kind,
      html("code", {}, name),
      datatype,
      html("code", {}, `[${shape.join(", ")}]`),
      optional.has(name) && kind === "input" ? "optional" : "",
    ]);
  const all = [...rows(metadata.inputs, "input"), ...rows(metadata.outputs, "output")];
  return html(
    "section",
    { class: "card" },
    html("h3", {}, "Inputs and outputs"),
    table("A dimension of -1 may have any size.", ["", "name", "datatype", "shape", ""], all),
  );
}

function optionalNames(config) {
  return new Set((config?.input ?? []).filter((input) => input.optional).map((input) => input.name));
}

async function showStatistics({ name, version }, section) {
  const parts = [html("h3", { id: "statistics" }, "Statistics")];
  try {
    const { model_stats: rows } = await ask(modelPath(name, version, "stats"));
    for (const row of rows) {
      const stats = row.inference_stats;
      const last = row.last_inference ? new Date(Number(row.last_inference)).toLocaleTimeString() : "never";
      const summary = `Version ${row.version}: ${grouped(row.inference_count)} inferences in ${grouped(row.execution_count)} executions, the last one ${last}.`;
      const lines = Object.entries(stats)
        .filter(([, { count }]) => count)
        .map(([what, { count, ns }]) => [what, count, ns / count / 1000]);
      parts.push(lines.length ? table(summary, ["", "count", "µs each"], lines) : html("p", { class: "hint" }, summary));
    }
  } catch (error) {
    parts.push(problem(error));
  }
  section.replaceChildren(...parts);
}

// Trying it.

function tryIt(model, done) {
  const { metadata, config } = model;
  const optional = optionalNames(config);
  const batches = config?.max_batch_size > 0;
  const fields = metadata.inputs.map((input) => inputField({ ...input, optional: optional.has(input.name) }, batches));
  const run = html("button", { type: "submit", class: "main" }, "Run");
  const stop = html("button", { type: "button", click: () => running.abort() }, "Stop");
  const note = html("span", { class: "hint", role: "status" });
  const result = html("div", { class: "result" });
  stop.hidden = true;

  const submit = async (event) => {
    event.preventDefault();
    const control = new AbortController();
    running.abort();
    running = control;
    [run.disabled, stop.hidden, note.textContent] = [true, false, "running …"];
    result.replaceChildren();
    const begun = performance.now();
    try {
      const inputs = (await Promise.all(fields.map((field) => field.read()))).filter(Boolean);
      const said = isDecoupled(config)
        ? await runStream(model, inputs, batches, result, control.signal)
        : await runInfer(model, inputs, batches, result, control.signal);
      note.textContent = `${said} in ${grouped(performance.now() - begun)} ms`;
    } catch (error) {
      note.textContent = control.signal.aborted ? "stopped" : "failed";
      if (!control.signal.aborted) {
        result.append(problem(error));
      }
    }
    [run.disabled, stop.hidden] = [false, true];
    done();
  };
  return html(
    "section",
    { class: "card" },
    html("h3", {}, "Try it"),
    html("form", { submit, autocomplete: "off" }, ...fields.map((field) => field.element), html("p", { class: "actions" }, run, stop, note)),
    result,
  );
}

async function runInfer({ name, version }, inputs, batches, result, signal) {
  const outputs = await infer(name, version, inputs, signal);
  result.append(...outputs.map((output) => showOutput(output, batches)));
  return `${outputs.length} ${outputs.length === 1 ? "output" : "outputs"}`;
}

async function runStream({ name, version, metadata }, inputs, batches, result, signal) {
  const view = streamView(metadata.outputs, batches);
  result.append(view.element);
  let count = 0;
  try {
    await stream(name, version, inputs, view.hear, signal);
  } finally {
    count = view.end();
  }
  return `${count} ${count === 1 ? "response" : "responses"}`;
}

// All of it.

async function refresh() {
  await Promise.all([showServer(), showList()]);
  await showModel(false);
}

filter.addEventListener("input", drawList);
byId("refresh").addEventListener("click", refresh);
window.addEventListener("hashchange", () => showModel(true));
refresh();
