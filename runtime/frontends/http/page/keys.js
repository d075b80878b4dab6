// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks for the value of a header that opens restricted APIs.

import { useKey } from "./api.js";
import { html } from "./dom.js";

/** A form for the first header that is missing. `done` is called when it was given. Returns {element, update}; `update`
 * takes the header of each API that is still closed. */
export function keyForm(done) {
  const value = html("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const label = html("label", {});
  const note = html("span", { class: "hint", role: "status" });
  let header = "";
  let tried = "";
  const submit = (event) => {
    event.preventDefault();
    useKey(header, value.value);
    [tried, value.value, note.textContent] = [header, "", ""];
    done();
  };
  const element = html("form", { class: "keys", submit, autocomplete: "off" }, label, html("button", { type: "submit" }, "Open"), note);
  element.hidden = true;

  const update = (closed) => {
    const next = Object.values(closed).sort()[0] ?? "";
    const apis = Object.keys(closed).filter((api) => closed[api] === next).sort();
    const title = `${apis.join(", ")}: restricted. Value of the header ${next} `;
    element.hidden = !next;
    if (label.dataset.title !== title) {
      label.dataset.title = title;
      label.replaceChildren(html("span", {}, title), value);
    }
    if (next && next === tried) {
      note.textContent = "That is not the value.";
    }
    header = next;
  };
  return { element, update };
}
