// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The page at /docs: every operation in openapi.json, with a form to try it.

import { ask, request } from "./api.js";
import { html, problem } from "./dom.js";
import { bytes, duration } from "./format.js";
import { keyForm } from "./keys.js";
import { exampleOf, outline, resolve } from "./schema.js";
import { formatJson, parseJson } from "./tensors.js";
import { copyArea } from "./try.js";

// Characters of a response that are shown.
const SHOWN_MAX = 100_000;
const ORDER = ["inference", "health", "metadata", "model-repository", "statistics", "model-config", "trace", "logging", "shared-memory"];
const JSON_TYPE = "application/json";

const byId = (id) => document.getElementById(id);
const [main, tags, filter, versions, menu] = ["main", "tags", "filter", "versions", "menu"].map(byId);
const keys = keyForm(() => keys.update({}));
let sections = [];

async function load() {
  try {
    draw(await ask("openapi.json"));
  } catch (error) {
    main.replaceChildren(problem(error));
    if (error.header) {
      keys.update({ metadata: error.header });
      keys.element.addEventListener("submit", () => load(), { once: true });
    }
  }
}

function draw(spec) {
  const groups = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const [tag] = operation.tags;
      groups.set(tag, [...(groups.get(tag) ?? []), { path, method, operation }]);
    }
  }
  const rank = (tag) => (ORDER.includes(tag) ? ORDER.indexOf(tag) : ORDER.length);
  sections = [...groups.keys()].sort((a, b) => rank(a) - rank(b)).map((tag) => {
    const operations = groups.get(tag).map((each) => ({ ...each, element: operationElement(spec, each) }));
    const element = html("section", { class: "card operations", id: tag }, html("h3", {}, tag), ...operations.map(({ element }) => element));
    const count = html("span", { class: "hint" });
    const link = html("li", {}, html("a", { href: `#${tag}`, click: () => openMenu(false) }, html("span", { class: "name" }, tag), count));
    return { operations, element, link, count };
  });
  byId("about").textContent = `API · ${spec.info.version}`;
  tags.replaceChildren(...sections.map(({ link }) => link));
  main.replaceChildren(
    html("h2", {}, "API of this server"),
    html("p", { class: "hint" }, spec.info.description),
    ...sections.map(({ element }) => element),
  );
  select();
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function select() {
  const wanted = filter.value.trim().toLowerCase();
  for (const { operations, element, link, count } of sections) {
    for (const { path, operation, element: each } of operations) {
      const isMeant = versions.checked || !path.includes("/versions/");
      each.hidden = !isMeant || !`${path} ${operation.summary}`.toLowerCase().includes(wanted);
    }
    const shown = operations.filter(({ element: each }) => !each.hidden).length;
    element.hidden = link.hidden = !shown;
    count.textContent = String(shown);
  }
}

/** One operation, whose contents are made when it is opened. */
function operationElement(spec, { path, method, operation }) {
  const element = html(
    "details",
    { class: "operation" },
    html(
      "summary",
      {},
      html("span", { class: "method", "data-method": method }, method.toUpperCase()),
      html("code", {}, path),
      html("span", { class: "hint" }, operation.summary),
    ),
  );
  element.addEventListener("toggle", () => element.append(operationBody(spec, path, method, operation)), { once: true });
  return element;
}

function operationBody(spec, path, method, operation) {
  const parameters = (operation.parameters ?? []).map((each) => parameterField(spec, resolve(spec, each)));
  const inPath = parameters.filter(({ place }) => place === "path");
  const others = parameters.filter(({ place }) => place !== "path");
  const body = bodyField(spec, operation.requestBody);
  const send = html("button", { type: "submit", class: "main" }, "Send");
  const note = html("span", { class: "hint", role: "status" });
  const result = html("div", { class: "result" });
  const copied = copyArea();

  const made = () => {
    const given = parameters.map((field) => [field, field.read()]).filter(([, value]) => value !== "");
    const url = given.reduce(
      (url, [{ place, name }, value]) => (place === "path" ? url.replace(`{${name}}`, encodeURIComponent(value)) : url),
      path.replace(/^\//, ""),
    );
    const missing = /\{(.+?)\}/.exec(url);
    if (missing) {
      throw new Error(`${missing[1]}: a value is needed.`);
    }
    const headers = Object.fromEntries(given.filter(([{ place }]) => place === "header").map(([{ name }, value]) => [name, value]));
    const text = body?.read() ?? "";
    return { url, method: method.toUpperCase(), headers: text ? { ...headers, "Content-Type": JSON_TYPE } : headers, body: text || undefined };
  };
  const submit = async (event) => {
    event.preventDefault();
    [send.disabled, note.textContent] = [true, "sending …"];
    result.replaceChildren();
    try {
      const { url, ...options } = made();
      const begun = performance.now();
      const response = await request(url, options);
      const text = await response.text();
      const type = response.headers.get("Content-Type") ?? "no body";
      const about = ` ${response.statusText} after ${duration(performance.now() - begun)}, ${bytes(text.length)}, ${type}`;
      note.replaceChildren(html("span", { class: "status", "data-class": String(response.status)[0] }, String(response.status)), about);
      result.append(...answer(type, text));
      offerKey(response, text);
    } catch (error) {
      note.textContent = "not sent";
      result.append(problem(error));
    }
    send.disabled = false;
  };
  const copy = () => {
    try {
      copied.show(command(made()));
    } catch (error) {
      copied.fail(error);
    }
  };
  return html(
    "div",
    { class: "try" },
    html(
      "form",
      { submit, autocomplete: "off" },
      ...inPath.map(({ element }) => element),
      body?.element ?? null,
      others.length ? html("details", { class: "wide" }, html("summary", {}, "Headers"), ...others.map(({ element }) => element)) : null,
      html("p", { class: "actions" }, send, note, html("span", { class: "space" }), html("button", { type: "button", class: "quiet", click: copy }, "Copy as curl")),
    ),
    copied.element,
    result,
    answersOf(spec, operation),
  );
}

function parameterField(spec, { name, in: place, required, description, schema }) {
  const found = resolve(spec, schema) ?? {};
  const label = `${name}${required ? "" : " (optional)"}`;
  const control = found.enum
    ? html("select", { "aria-label": name }, ...found.enum.map((value) => html("option", {}, String(value))))
    : html("input", { type: "text", "aria-label": name, spellcheck: "false" });
  const element = html(
    "fieldset",
    {},
    html("legend", {}, label, " ", html("code", {}, place)),
    html("div", { class: "field" }, control, description ? html("span", { class: "hint" }, description) : null),
  );
  return { name, place, element, read: () => control.value.trim() };
}

function bodyField(spec, given) {
  const media = resolve(spec, given)?.content?.[JSON_TYPE];
  if (!media) {
    return null;
  }
  const example = media.example ?? exampleOf(spec, media.schema);
  const text = html("textarea", { rows: 8, "aria-label": "Body", spellcheck: "false" });
  text.value = given.required ? formatJson(example) : "";
  text.placeholder = given.required ? "" : formatJson(example);
  const element = html(
    "fieldset",
    { class: "wide" },
    html("legend", {}, given.required ? "Body" : "Body (optional)", " ", html("code", {}, JSON_TYPE)),
    html("div", { class: "field" }, text, schemaDetails(spec, media.schema, "Schema of the body")),
  );
  return { element, read: () => text.value.trim() };
}

function schemaDetails(spec, schema, title) {
  const lines = outline(spec, schema);
  const items = lines.map(({ depth, name, type, isRequired, description }) =>
    html(
      "li",
      { "data-depth": String(Math.min(depth, 6)) },
      name ? html("code", {}, name) : null,
      html("span", { class: "type" }, ` ${type}`),
      name && isRequired ? html("span", { class: "hint" }, " required") : null,
      description ? html("span", { class: "hint" }, ` ${description}`) : null,
    ),
  );
  return html("details", {}, html("summary", {}, title), html("ul", { class: "schema" }, ...items));
}

function answersOf(spec, { responses }) {
  const rows = Object.entries(responses).map(([status, each]) => {
    const response = resolve(spec, each);
    const media = Object.values(response.content ?? {}).find(({ schema }) => schema);
    return html(
      "li",
      {},
      html("span", { class: "status", "data-class": status[0] }, status),
      html("span", {}, ` ${response.description}`),
      media && status === "200" ? schemaDetails(spec, media.schema, "Schema") : null,
    );
  });
  return html("div", { class: "answers" }, html("h4", {}, "Responses"), html("ul", {}, ...rows));
}

function answer(type, text) {
  let shown = text;
  if (type.startsWith(JSON_TYPE)) {
    try {
      shown = formatJson(parseJson(text));
    } catch {
      // It is shown as it came.
    }
  }
  const isLong = shown.length > SHOWN_MAX;
  return text ? [html("pre", { tabindex: "0", "aria-label": "Response" }, isLong ? `${shown.slice(0, SHOWN_MAX)} …` : shown)] : [];
}

/** Ask for the header that a refused request lacks. */
function offerKey(response, text) {
  const header = response.status === 403 && /expecting header '(.+)'/.exec(text)?.[1];
  if (header) {
    keys.update({ "This API": header });
  }
}

function command({ url, method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [`curl -X ${method} ${quoted(new URL(url, new URL(".", location.href)).href)}`];
  parts.push(...Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`));
  return [...parts, ...(body ? [`-d ${quoted(body)}`] : [])].join(" \\\n  ");
}

function openMenu(isOpen) {
  menu.setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("menu", isOpen);
}

byId("keys").append(keys.element);
filter.addEventListener("input", select);
versions.addEventListener("change", select);
menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
load();
