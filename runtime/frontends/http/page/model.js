// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The view of one model: its versions, what an operator may do with it, and panels below each other.

import { activityCharts } from "./activity.js";
import { ask, modelPath, post } from "./api.js";
import { html, problem, table } from "./dom.js";
import { bytes, grouped } from "./format.js";
import { logPanel } from "./log.js";
import { badge, modelLink, stackedTable, stateOf } from "./parts.js";
import { stepTimeline } from "./timeline.js";
import { tryIt } from "./try.js";

/** The panels, from top to bottom. Each is a function of {name, version, metadata, config, isDecoupled, optional, steps}
 * and the Watch, and returns {element, update?, close?}: `update` is called with the Watch whenever it has news. One that
 * needs metadata or a configuration is left out where the server does not send them; `steps` are those of an ensemble. */
const PANELS = [
  { make: tryIt, needs: ["metadata"] },
  { make: ({ steps }) => steps, needs: ["steps"] },
  { make: activity, needs: [] },
  { make: instances, needs: [] },
  { make: tensors, needs: ["metadata"] },
  { make: statistics, needs: [] },
  { make: configuration, needs: ["config"] },
  { make: ({ name }) => logPanel(name), needs: [] },
];

/** A view as in overview.js. `again` is called when the model has become another one, and the view is out of date. */
export async function modelView(name, version, watch, again) {
  const found = await read(name, version);
  const { config } = found;
  const model = {
    name,
    version,
    ...found,
    isDecoupled: config?.model_transaction_policy?.decoupled === true,
    steps: stepTimeline(config),
    optional: new Set((config?.input ?? []).filter((input) => input.optional).map((input) => input.name)),
  };
  const panels = PANELS.filter(({ needs }) => needs.every((what) => model[what])).map(({ make }) => make(model, watch));
  const states = html("div", { class: "states" });
  const problems = html("div", { class: "problems" }, ...found.problems.map((message) => problem(new Error(message))));
  const control = controls(name, watch);
  let shown = "";
  let loaded = loadsOf(name, watch);
  let wasGone = false;

  const update = (news) => {
    const rows = news.models().get(name) ?? [];
    const now = JSON.stringify(rows);
    if (now !== shown) {
      shown = now;
      states.replaceChildren(...stateParts(model, rows));
    }
    // The reason of a state says more than that there is no such model now.
    problems.hidden = rows.some(({ reason }) => reason) && found.problems.every((message) => message.startsWith("404"));
    control.update(news, rows);
    panels.forEach((panel) => panel.update?.(news));
    const loads = loadsOf(name, news);
    const isBack = wasGone && news.goneSince === null;
    wasGone = news.goneSince !== null;
    if (!wasGone && (isBack || loads !== loaded)) {
      loaded = loads;
      compare();
    }
  };
  const compare = async () => {
    if (JSON.stringify(await read(name, version)) !== JSON.stringify(found)) {
      again();
    }
  };
  return {
    title: name,
    elements: [
      html("h2", { tabindex: "-1" }, name),
      states,
      control.element,
      problems,
      ...panels.map(({ element }) => element),
    ],
    update,
    close: () => panels.forEach((panel) => panel.close?.()),
  };
}

/** {metadata, config, problems}: what the server says of a model, or why it does not. */
async function read(name, version) {
  const [metadata, config] = await Promise.allSettled([ask(modelPath(name, version)), ask(modelPath(name, version, "config"))]);
  const problems = [metadata, config].filter(({ reason }) => reason).map(({ reason }) => reason.message);
  return { metadata: metadata.value, config: config.value, problems: [...new Set(problems)] };
}

/** Another text whenever a version was loaded or unloaded. */
function loadsOf(name, watch) {
  const rows = watch.models().get(name) ?? [];
  return JSON.stringify([rows.map((row) => [row.version, row.state]), watch.versions(name).map((row) => row.since_ms)]);
}

function stateParts({ name, version, metadata, config, isDecoupled }, rows) {
  const current = version || metadata?.versions?.at(-1);
  const versions = rows.map((row) =>
    html(
      "a",
      { class: "version", href: modelLink(name, row.version), "aria-current": row.version === current && "true" },
      row.version ? `version ${row.version} ` : "",
      badge(row.state),
    ),
  );
  const facts = config
    ? [
        config.backend || config.platform,
        config.max_batch_size > 0 ? `batches of up to ${config.max_batch_size}` : "no batches",
        isDecoupled ? "decoupled: any number of responses" : null,
      ].filter(Boolean)
    : [];
  const reasons = rows.filter((row) => row.reason).map((row) => html("p", { class: "problem" }, row.reason));
  return [html("p", {}, ...versions), html("p", { class: "hint" }, facts.join(" · ")), ...reasons];
}

// Loading and unloading.

function controls(name, watch) {
  const note = html("span", { class: "hint", role: "status" });
  const act = async (what, doing) => {
    note.textContent = doing;
    buttons.forEach((button) => (button.disabled = true));
    try {
      await post(`v2/repository/models/${encodeURIComponent(name)}/${what}`, {});
      note.textContent = `${what}ed`;
    } catch (error) {
      note.textContent = error.message;
    }
    buttons.forEach((button) => (button.disabled = false));
    watch.wake();
  };
  const load = html("button", { type: "button", click: () => act("load", "loading …") }, "Load");
  const unload = html("button", { type: "button", click: () => asked.showModal() }, "Unload …");
  const buttons = [load, unload];
  const asked = html(
    "dialog",
    { "aria-label": `Unload ${name}` },
    html("p", {}, `Unload ${name}? Requests in progress are answered, and later ones are refused.`),
    html(
      "p",
      { class: "actions" },
      html("button", { type: "button", class: "danger", click: () => (asked.close(), act("unload", "unloading …")) }, "Unload"),
      html("button", { type: "button", click: () => asked.close() }, "Cancel"),
    ),
  );
  const element = html("p", { class: "control" }, load, unload, note);
  element.append(asked);
  element.hidden = true;
  const update = (news, rows) => {
    const isReady = stateOf(rows) === "READY";
    element.hidden = !news.document?.may.load;
    load.textContent = isReady ? "Reload" : "Load";
    unload.hidden = !isReady;
  };
  return { element, update };
}

// Panels.

function activity({ name }) {
  const { element, update: draw } = activityCharts();
  const update = (watch) => {
    const { document, history } = watch;
    const versions = watch.versions(name);
    // A model that has never served has nothing to be drawn.
    element.hidden = !document?.versions || !(history.points(name).length || versions.length);
    if (document) {
      draw(history.points(name), document.server.now_ms);
    }
  };
  return { element, update };
}

function instances({ name, version }) {
  const list = html("div", {});
  const stacks = html("div", { class: "stacks" });
  const note = html("span", { class: "hint", role: "status" });
  const show = async () => {
    [button.disabled, note.textContent] = [true, "asking …"];
    try {
      const found = (await post("page/stacks", { model: name })).stacks;
      note.textContent = found.length ? "" : "No process of this model runs.";
      stacks.replaceChildren(...found.map(stackOf));
    } catch (error) {
      note.textContent = error.message;
    }
    button.disabled = false;
  };
  const button = html("button", { type: "button", class: "quiet", click: show }, "Show stacks");
  const tools = html("span", { class: "tools" }, note, button);
  const element = html("section", { class: "card" }, html("div", { class: "heading" }, html("h3", {}, "Instances"), tools), list, stacks);
  let shown = "";

  const update = (watch) => {
    const versions = watch.versions(name).filter((row) => !version || row.version === version);
    tools.hidden = !watch.document?.may.internals;
    element.hidden = tools.hidden && !versions.length;
    const now = JSON.stringify(versions.map((row) => [row.version, row.instances, row.placement, row.queued, row.levels, bytes(row.memory)]));
    if (now !== shown) {
      shown = now;
      list.replaceChildren(...(versions.length ? versions.map(instanceTable) : [html("p", { class: "hint" }, "None runs.")]));
    }
  };
  return { element, update };
}

function instanceTable({ version, instances: all, queued, levels, memory, placement }) {
  const onGpus = all.some(({ gpu }) => gpu !== undefined);
  const rows = all.map(({ name, state, restarts, down, gpu }) => [
    html("code", {}, name),
    ...(onGpus ? [gpu === undefined ? "–" : `${gpu}`] : []),
    html("span", { class: "badge", "data-state": { ready: "READY", down: "UNAVAILABLE" }[state] ?? "LOADING" }, state),
    `${restarts}`,
    down,
  ]);
  const waiting = Object.entries(levels).filter(([, count]) => count).map(([level, count]) => `${count} of level ${level}`);
  const caption = `Version ${version}: ${queued} queued${waiting.length ? ` (${waiting.join(", ")})` : ""}, ${bytes(memory)} of tensors${placement ? `; ${placement}, as the configuration names none` : ""}`;
  return stackedTable(caption, ["instance", ...(onGpus ? ["GPU"] : []), "state", "restarts", "reason"], rows);
}

function stackOf({ instance, version, pid, by_signal: bySignal, problem: why, text }) {
  return html(
    "details",
    { open: true },
    html("summary", {}, html("code", {}, instance), ` version ${version}, process ${pid}`),
    bySignal ? html("p", { class: "hint" }, "A call into C keeps the interpreter's lock.") : null,
    why ? html("p", { class: "problem" }, `No stacks, or not all of them: the process ${why}.`) : null,
    html("pre", { tabindex: "0", "aria-label": `Stacks of ${instance}` }, text),
  );
}

function tensors({ metadata, optional }) {
  const rows = (tensors, kind) =>
    tensors.map(({ name, datatype, shape }) => [
      kind,
      html("code", {}, name),
      datatype,
      html("code", {}, `[${shape.join(", ")}]`),
      optional.has(name) && kind === "input" ? "optional" : "",
    ]);
  const all = [...rows(metadata.inputs, "input"), ...rows(metadata.outputs, "output")];
  const element = html(
    "section",
    { class: "card" },
    html("h3", {}, "Inputs and outputs"),
    stackedTable("A dimension of -1 may have any size.", ["kind", "name", "datatype", "shape", "note"], all),
  );
  return { element };
}

const STEPS = [["success", "total"], ["queue", "queue"], ["compute input", "input"], ["compute infer", "infer"], ["compute output", "output"]];

function statistics({ name, version }) {
  const tables = html("div", {});
  const element = html("section", { class: "card", "aria-label": "Statistics" }, html("h3", {}, "Statistics"), tables);
  let shown = "";
  const update = (watch) => {
    const rows = watch.versions(name).filter((row) => !version || row.version === version);
    element.hidden = !rows.length;
    const now = JSON.stringify(rows);
    if (now !== shown) {
      shown = now;
      tables.replaceChildren(...rows.map(statisticsTable));
    }
  };
  return { element, update };
}

function statisticsTable(row) {
  const last = row.last_ms ? new Date(row.last_ms).toLocaleTimeString("en-GB") : "never";
  const more = [row.failure ? `${grouped(row.failure)} failed` : "", row.hits ? `${grouped(row.hits)} from the cache` : ""].filter(Boolean);
  const summary = `Version ${row.version}: ${grouped(row.inferences)} inferences in ${grouped(row.executions)} executions, the last one ${last}.${more.length ? ` ${more.join(", ")}.` : ""}`;
  const executed = row.success - row.hits;
  const lines = STEPS.map(([title, step]) => [title, step === "total" || step === "queue" ? row.success : executed, row.ns[step]])
    .filter(([, count]) => count)
    .map(([title, count, ns]) => [title, count, ns / count / 1000]);
  return lines.length ? table(summary, ["step", "count", "µs each"], lines) : html("p", { class: "hint" }, summary);
}

function configuration({ config }) {
  const text = html("pre", { tabindex: "0", "aria-label": "Configuration" }, JSON.stringify(config, null, 2));
  return { element: html("details", { class: "card" }, html("summary", {}, html("h3", {}, "Configuration")), text) };
}
