// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The last lines of the server's log, or those of them that name a model.

import { html } from "./dom.js";
import { clock } from "./format.js";

// Lines that are shown.
const SHOWN_MAX = 200;
const LEVELS = { E: "error", W: "warning", I: "info", V: "verbose" };
const REFUSED =
  "Log lines are for browsers on the server's own machine, at localhost, or for those that have the header of the " +
  "restricted API “logging”.";

// How the lines of text tables begin.
const TABLE = /^[|+]/m;

/** A section with the lines that contain `name`, or all for "". Returns {element, update}. */
export function logPanel(name = "") {
  const title = name ? "Log of this model" : "Log";
  const level = html(
    "select",
    { "aria-label": "Levels", change: () => draw(true) },
    html("option", { value: "EWIV" }, "all levels"),
    html("option", { value: "EW" }, "warnings and errors"),
    html("option", { value: "E" }, "errors"),
  );
  const filter = html("input", { type: "search", placeholder: "Search", "aria-label": "Search the log", input: () => draw(true) });
  const list = html("ol", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": title });
  const refused = html("p", { class: "hint" }, REFUSED);
  const tools = html("span", { class: "tools" }, level, filter);
  const element = html("section", { class: "card" }, html("div", { class: "heading" }, html("h3", {}, title), tools), list, refused);
  let watch = null;
  let drawn = "";

  const draw = (always) => {
    const sees = watch?.document?.may.internals ?? false;
    [list.hidden, tools.hidden, refused.hidden] = [!sees, !sees, sees || !watch?.document];
    const wanted = filter.value.trim().toLowerCase();
    const chosen = (watch?.lines ?? []).filter(
      ({ level: each, text }) => level.value.includes(each) && isAbout(name, text) && text.toLowerCase().includes(wanted),
    );
    const shown = chosen.slice(-SHOWN_MAX);
    const now = `${shown.at(0)?.number} ${shown.at(-1)?.number}`;
    if (now === drawn && !always) {
      return;
    }
    drawn = now;
    // Whoever has scrolled back wants to read.
    const follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 24;
    list.replaceChildren(...(shown.length ? shown.map(row) : [html("li", { class: "hint" }, "No lines.")]));
    if (follows) {
      list.scrollTop = list.scrollHeight;
    }
  };
  const update = (news) => {
    watch = news;
    draw(false);
  };
  return { element, update };
}

/** Whether a line names a model. The table of all models names each of them. */
function isAbout(name, text) {
  return !name || (text.includes(name) && !TABLE.test(text));
}

function row({ time, level, file, line, text }) {
  return html(
    "li",
    { "data-level": level, title: `${LEVELS[level]}, ${file}:${line}` },
    html("time", {}, clock(time)),
    html("span", { class: "level" }, level),
    html("span", { class: TABLE.test(text) ? "text table" : "text" }, text),
  );
}
