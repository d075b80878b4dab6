// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The page: header, list of models, and one view beside it. Which view stands behind the # of the address: nothing for
// the overview, and /<model>/<version> for a model.

import { html } from "./dom.js";
import { clock } from "./format.js";
import { keyForm } from "./keys.js";
import { modelView } from "./model.js";
import { overview } from "./overview.js";
import { badge, modelLink, stateOf } from "./parts.js";
import { Watch } from "./watch.js";

const byId = (id) => document.getElementById(id);
const [list, filter, main, banner, menu] = [byId("models"), byId("filter"), byId("main"), byId("banner"), byId("menu")];

const watch = new Watch(update);
const keys = keyForm(() => {
  watch.wake();
  show(false);
});
let view = overview();
// Grows with each view that is chosen: one that comes too late is dropped.
let turn = 0;
let listed = "";

function chosen() {
  const [name = "", version = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  return { name, version };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Show the view that the address names. */
async function show(focus) {
  const mine = ++turn;
  const { name, version } = chosen();
  openMenu(false);
  drawList();
  const next = name ? await modelView(name, version, watch, () => show(false)) : overview();
  if (mine !== turn) {
    next.close();
    return;
  }
  view.close();
  view = next;
  main.replaceChildren(...view.elements);
  document.title = view.title ? `${view.title} – pyruntime` : "pyruntime";
  view.update(watch);
  if (focus) {
    main.querySelector("h2").focus();
    scrollTo(0, 0);
  }
}

/** There is news of the server, or there should have been. */
function update() {
  const { document: news, goneSince } = watch;
  banner.hidden = goneSince === null;
  if (goneSince !== null) {
    banner.textContent = `The server does not answer since ${clock(goneSince)} (${watch.problem}). Trying again …`;
  }
  document.body.classList.toggle("gone", goneSince !== null);
  const state = goneSince !== null ? "gone" : news.server.exiting ? "stopping" : news.server.ready ? "ready" : "not ready";
  setText(byId("readiness"), state);
  byId("readiness").dataset.state = { ready: "READY", "not ready": "LOADING", stopping: "LOADING" }[state] ?? "UNAVAILABLE";
  if (news?.server.name) {
    setText(byId("about"), [news.server.version, news.server.name === "triton" ? "" : news.server.name].filter(Boolean).join(" · "));
  }
  keys.update(news?.closed ?? {});
  drawList();
  view.update(watch);
}

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function drawList() {
  const wanted = filter.value.trim().toLowerCase();
  const { name: current } = chosen();
  const groups = [...watch.models()];
  const entries = groups.filter(([name]) => name.toLowerCase().includes(wanted)).map(([name, rows]) => [name, stateOf(rows)]);
  byId("home").setAttribute("aria-current", current ? "false" : "page");
  const now = JSON.stringify([entries, current]);
  // A list that has not changed keeps the focus that is in it.
  if (now === listed) {
    return;
  }
  listed = now;
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const made = entries.map(([name, state]) =>
    html(
      "li",
      {},
      html("a", { href: modelLink(name), "aria-current": name === current && "page" }, html("span", { class: "name" }, name), badge(state)),
    ),
  );
  const none = groups.length ? "No such model." : "No models.";
  list.replaceChildren(...(made.length ? made : [html("li", { class: "hint" }, none)]));
  if (focused !== null) {
    list.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

function openMenu(isOpen) {
  menu.setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("menu", isOpen);
}

byId("keys").append(keys.element);
filter.addEventListener("input", drawList);
menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
document.addEventListener("keydown", (event) => event.key === "Escape" && openMenu(false));
window.addEventListener("hashchange", () => show(true));
watch.wake();
show(false);
