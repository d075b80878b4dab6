// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The view of the whole server: figures and plots of the last minutes, all models, and the log.

import { activityCharts } from "./activity.js";
import { sparkline } from "./chart.js";
import { html } from "./dom.js";
import { bytes, duration, short, span } from "./format.js";
import { logPanel } from "./log.js";
import { badge, modelLink, stackedTable, stateOf, tile } from "./parts.js";

/** A view: {elements, update, close}. `update` is called with the Watch whenever it has news. */
export function overview() {
  const tiles = Object.fromEntries(
    [["models", "Models ready"], ["rate", "Requests"], ["latency", "Latency"], ["failures", "Failures"], ["work", "In flight"], ["uptime", "Uptime"]].map(
      ([key, title]) => [key, tile(title)],
    ),
  );
  const charts = activityCharts();
  const problems = html("div", { class: "problems" });
  const models = html("section", { class: "card", "aria-label": "Models" });
  const closed = html("p", { class: "hint" }, "Rates and latencies need the header of the restricted API “statistics”.");
  const log = logPanel();
  let listed = "";

  const update = (watch) => {
    const news = watch.document;
    if (!news) {
      return;
    }
    const { server, versions } = news;
    const points = watch.history.points();
    const last = points.at(-1);
    const groups = watch.models();
    const ready = [...groups.values()].filter((rows) => stateOf(rows) === "READY").length;
    tiles.models.set(`${ready} of ${groups.size}`, ready === groups.size ? "" : `${groups.size - ready} not ready`);
    tiles.rate.set(last ? `${short(last.requests)}/s` : "–", versions ? `${sum(versions, "success").toLocaleString("en")} in all` : "");
    tiles.latency.set(duration(last?.latency ?? null), last && last.latency !== null ? `${duration(last.queue)} queued` : "no requests now");
    tiles.failures.set(last ? `${short(last.failures)}/s` : "–", versions ? `${sum(versions, "failure").toLocaleString("en")} in all` : "");
    tiles.work.set(server.in_flight === undefined ? "–" : String(Math.max(0, server.in_flight - 1)), last ? `${last.queued} queued` : "");
    tiles.uptime.set(span(server.now_ms - server.began_ms), versions ? `${bytes(sum(versions, "memory"))} tensors` : "");
    [charts.element.hidden, closed.hidden] = [!versions, Boolean(versions)];
    charts.update(points, server.now_ms);
    showProblems(problems, groups);
    // A link that has the focus keeps it: the table is drawn anew only while nobody is in it.
    const now = JSON.stringify([news.models, versions, last?.at]);
    if (now !== listed && !models.contains(document.activeElement)) {
      listed = now;
      models.replaceChildren(groups.size ? modelTable(groups, watch) : html("p", { class: "hint" }, "There are no models."));
    }
    log.update(watch);
  };
  return {
    title: "",
    elements: [
      html("h2", { tabindex: "-1", class: "unseen" }, "Overview"),
      problems,
      html("section", { class: "tiles", "aria-label": "Now" }, ...Object.values(tiles).map(({ element }) => element)),
      charts.element,
      closed,
      models,
      log.element,
    ],
    update,
    close: () => {},
  };
}

function sum(versions, what) {
  return versions.reduce((total, row) => total + row[what], 0);
}

function showProblems(element, groups) {
  const rows = [...groups.values()].flat().filter(({ reason }) => reason && reason !== "unloaded");
  const now = JSON.stringify(rows);
  if (element.dataset.now !== now) {
    element.dataset.now = now;
    element.replaceChildren(
      ...rows.map(({ name, version, reason }) =>
        html("div", { class: "problem" }, html("a", { href: modelLink(name) }, version ? `${name}, version ${version}` : name), html("p", {}, reason)),
      ),
    );
  }
}

function modelTable(groups, watch) {
  const now = watch.document.server.now_ms;
  const rows = [...groups].map(([name, all]) => {
    const points = watch.history.points(name);
    const last = points.at(-1);
    const versions = watch.versions(name);
    const instances = versions.flatMap((row) => row.instances);
    const up = instances.filter(({ state }) => state === "ready").length;
    const restarts = instances.reduce((total, each) => total + each.restarts, 0);
    return [
      html("a", { class: "name", href: modelLink(name) }, name),
      badge(stateOf(all)),
      last ? `${short(last.requests)}/s` : "–",
      points.length ? sparkline(points, ({ requests }) => requests, now, `Requests to ${name} over the last minutes`) : "",
      duration(last?.latency ?? null),
      last ? String(last.queued) : "–",
      instances.length ? `${up} of ${instances.length}${restarts ? `, ${restarts} ${restarts === 1 ? "restart" : "restarts"}` : ""}` : "–",
    ];
  });
  return stackedTable("Models", ["model", "state", "requests", "last minutes", "latency", "queued", "instances"], rows, "compact");
}
