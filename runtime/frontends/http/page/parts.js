// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What several views are made of.

import { html } from "./dom.js";

/** The state of a version, as a badge. */
export function badge(state) {
  return html("span", { class: "badge", "data-state": state || "UNKNOWN" }, (state || "unknown").toLowerCase());
}

/** One state for all versions of a model. */
export function stateOf(rows) {
  return rows.some((row) => row.state === "READY") ? "READY" : rows.at(-1)?.state || "UNKNOWN";
}

/** The address of a model's view. */
export function modelLink(name, version = "") {
  return `#/${encodeURIComponent(name)}${version && `/${version}`}`;
}

/** A number with its name. Returns {element, set}; `set` takes what to show and a note below it. */
export function tile(title) {
  const value = html("span", { class: "figure" }, "–");
  const note = html("span", { class: "hint" });
  const set = (text, more = "") => {
    if (value.textContent !== text) {
      value.textContent = text;
    }
    if (note.textContent !== more) {
      note.textContent = more;
    }
  };
  return { element: html("div", { class: "tile" }, html("span", { class: "title" }, title), value, note), set };
}

/** A table that becomes a list of blocks where there is no room, with a line for each cell, or "compact" ones; `head` are the titles, and cells are elements. */
export function stackedTable(caption, head, rows, kind = "stacked") {
  const cells = (row) => row.map((cell, at) => html("td", { "data-title": head[at], "data-none": cell === "–" }, cell));
  return html(
    "table",
    { class: kind },
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...head.map((title) => html("th", { scope: "col" }, title)))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...cells(row)))),
  );
}
