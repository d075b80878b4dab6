// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests and latencies over the last minutes, of the server or of one model.

import { timeChart } from "./chart.js";
import { html } from "./dom.js";
import { duration, short } from "./format.js";

/** {element, update}: `update` takes the points of a History and the current time. */
export function activityCharts() {
  const rates = timeChart("Requests per second", [
    { name: "answered", of: ({ requests }) => requests },
    { name: "failed", of: ({ failures }) => failures },
  ], short);
  const latencies = timeChart("Mean latency", [
    { name: "whole", of: ({ latency }) => latency },
    { name: "in the queue", of: ({ queue }) => queue },
    { name: "in the model", of: ({ compute }) => compute },
  ], duration);
  const element = html("section", { class: "card charts", "aria-label": "The last minutes" }, rates.element, latencies.element);
  const update = (points, now) => {
    rates.update(points, now);
    latencies.update(points, now);
  };
  return { element, update };
}
