// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Making elements. Whatever is said by models, or by anybody, becomes text and attributes here, and never markup.

import { grouped } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes that are functions are listeners, true and false are there or not; strings are text. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name, value);
    } else if (value !== false && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** What went wrong, for somebody to read. */
export function problem(error) {
  return html("p", { class: "problem", role: "alert" }, error.message || String(error));
}

/** A table with a head; cells are strings or elements, and those that are numbers stand to the right. */
export function table(caption, head, rows) {
  const cell = (content) =>
    html("td", typeof content === "number" ? { class: "number" } : {}, typeof content === "number" ? grouped(content) : content);
  return html(
    "div",
    { class: "scroll" },
    html(
      "table",
      {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, ...head.map((title) => html("th", { scope: "col" }, title)))),
      html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map(cell)))),
    ),
  );
}
