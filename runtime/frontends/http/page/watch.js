// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Follows the server: one request at a time, every two seconds, and none while nobody looks at the page.

import { post } from "./api.js";
import { History } from "./history.js";

// Between two requests, in milliseconds; a server that answers slowly is asked more seldom.
const INTERVAL_MS = 2000;
const PATIENCE = 10;
// A server that does not answer within this time is gone, in milliseconds.
const TIMEOUT_MS = 10_000;
// Lines of the log that are kept.
const LINES_MAX = 500;

/** What is known of the server. `hear` is called after each attempt to ask it, and `wake` asks at once.
 *
 * `document` is the last one that it sent, null before the first. `goneSince` is null, or when it stopped to answer, in
 * milliseconds since the epoch, and `problem` then says how. `restricted` has the header of each API that needs one. */
export class Watch {
  document = null;
  goneSince = null;
  problem = "";
  lines = [];
  restricted = {};
  history = new History();
  #hear;
  #timer = 0;
  #asking = false;

  constructor(hear) {
    this.#hear = hear;
    document.addEventListener("visibilitychange", () => this.wake());
  }

  /** Ask now, unless that is being done or nobody looks. */
  async wake() {
    if (this.#asking || document.hidden) {
      return;
    }
    this.#asking = true;
    clearTimeout(this.#timer);
    const begun = performance.now();
    try {
      this.#take(await post("page/watch", { log_after: this.lines.at(-1)?.number ?? 0 }, AbortSignal.timeout(TIMEOUT_MS)));
    } catch (error) {
      this.goneSince ??= Date.now();
      this.problem = error.message;
    }
    this.#asking = false;
    this.#timer = setTimeout(() => this.wake(), Math.max(INTERVAL_MS, PATIENCE * (performance.now() - begun)));
    this.#hear(this);
  }

  #take(news) {
    if (this.document?.server.began_ms !== news.server.began_ms) {
      this.lines = [];
    }
    this.document = news;
    this.goneSince = null;
    this.problem = "";
    Object.assign(this.restricted, news.closed);
    const lines = (news.log ?? []).map(([number, time, level, file, line, text]) => ({ number, time, level, file, line, text }));
    const last = this.lines.at(-1)?.number ?? 0;
    this.lines = [...this.lines, ...lines.filter(({ number }) => number > last)].slice(-LINES_MAX);
    this.history.add(news);
  }

  /** The rows of the index by model, in its order; empty where the index is not open. */
  models() {
    const groups = new Map();
    for (const row of this.document?.models ?? this.document?.versions ?? []) {
      groups.set(row.name, [...(groups.get(row.name) ?? []), { state: "READY", reason: "", ...row }]);
    }
    return groups;
  }

  /** The counters of the versions of a model that serve. */
  versions(name) {
    return (this.document?.versions ?? []).filter((row) => row.name === name);
  }
}
