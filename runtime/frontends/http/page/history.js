// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The last minutes of the server and of each model, as points for plots. The server's counters only grow: a point is
// what they grew by between two documents of `/page/watch`. Nothing here touches the page.

// How much is kept, in milliseconds and in points of one series.
export const SPAN_MS = 10 * 60_000;
const POINTS_MAX = 600;

/** Series of points, {at, requests, failures, latency, queue, compute, queued, batch}: rates are per second, times are
 * means in milliseconds, null where no request was answered. */
export class History {
  #last = null;
  #began = 0;
  #series = new Map();

  /** The points of a model, or of all of them together for "". */
  points(model = "") {
    return this.#series.get(model) ?? [];
  }

  /** Take the next document. Counters that are new, or have begun anew, give their first point with the one after. */
  add({ server, versions }) {
    if (!versions) {
      return;
    }
    const now = { at: server.now_ms, counters: new Map(versions.map((row) => [`${row.version} ${row.name}`, row])) };
    const last = this.#began === server.began_ms ? this.#last : null;
    [this.#last, this.#began] = [now, server.began_ms];
    if (!last || now.at <= last.at) {
      return;
    }
    const sums = new Map([["", blank()]]);
    for (const [key, row] of now.counters) {
      const sum = sums.get(row.name) ?? blank();
      sums.set(row.name, sum);
      for (const each of [sum, sums.get("")]) {
        grow(each, last.counters.get(key), row);
      }
    }
    const seconds = (now.at - last.at) / 1000;
    for (const [name, sum] of sums) {
      this.#keep(name, point(now.at, seconds, sum));
    }
  }

  #keep(name, made) {
    const points = this.#series.get(name) ?? [];
    this.#series.set(name, points);
    points.push(made);
    while (points.length > POINTS_MAX || points[0].at < made.at - SPAN_MS) {
      points.shift();
    }
  }
}

function blank() {
  return { success: 0, failure: 0, inferences: 0, executions: 0, total: 0, queue: 0, compute: 0, queued: 0 };
}

function grow(sum, before, row) {
  sum.queued += row.queued;
  if (!before || before.since_ms !== row.since_ms || before.success > row.success || before.failure > row.failure) {
    return;
  }
  for (const name of ["success", "failure", "inferences", "executions"]) {
    sum[name] += row[name] - before[name];
  }
  for (const [name, steps] of [["total", ["total"]], ["queue", ["queue"]], ["compute", ["input", "infer", "output"]]]) {
    sum[name] += steps.reduce((ns, step) => ns + row.ns[step] - before.ns[step], 0);
  }
}

function point(at, seconds, sum) {
  const each = (ns) => (sum.success ? ns / sum.success / 1e6 : null);
  return {
    at,
    requests: sum.success / seconds,
    failures: sum.failure / seconds,
    latency: each(sum.total),
    queue: each(sum.queue),
    compute: each(sum.compute),
    queued: sum.queued,
    batch: sum.executions ? sum.inferences / sum.executions : null,
  };
}
