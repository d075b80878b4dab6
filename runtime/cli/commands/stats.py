# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime stats`: prints the statistics of models, once or every second."""

from __future__ import annotations

import time
from typing import cast

from rich.live import Live

from pyruntime.runtime.cli.commands.client import ServerClient, model_path
from pyruntime.runtime.cli.commands.show import print_json, show_table, table
from pyruntime.runtime.cli.commands.statistics import HEADINGS, NUMBERS, RATE, Statistics, rows

# The interval of --watch, in seconds.
WATCH_S = 1.0


def run_stats(client: ServerClient, model: str, watch: bool, as_json: bool) -> int:
    """Print the statistics of a model, or of all for "". Raises CommandError."""
    statistics = _ask(client, model)
    if watch:
        try:
            _watch(client, model, statistics, as_json)
        except KeyboardInterrupt:
            return 0  # the usual end of --watch, and no failure
    if as_json:
        print_json(statistics)
    else:
        show_table(HEADINGS, rows(statistics), NUMBERS, padding=0)
    return 0


def _ask(client: ServerClient, model: str) -> Statistics:
    if not model:
        found = client.get("/v2/models/stats", "model_stats")
    else:
        with client.about(model):
            found = client.get(f"{model_path(model)}/stats", "model_stats")
    return cast("Statistics", found["model_stats"])


def _watch(client: ServerClient, model: str, statistics: Statistics, as_json: bool) -> None:
    """Until Ctrl-C: update one table, or print a line of JSON at each interval."""
    if as_json:
        while True:
            print_json(statistics)
            time.sleep(WATCH_S)
            statistics = _ask(client, model)
    with Live(table(HEADINGS, rows(statistics), NUMBERS, padding=0), auto_refresh=False) as live:
        asked = time.monotonic()
        while True:
            time.sleep(WATCH_S)
            before, statistics = statistics, _ask(client, model)
            elapsed_s, asked = time.monotonic() - asked, time.monotonic()
            shown = rows(statistics, before, elapsed_s)
            live.update(table((*HEADINGS, RATE), shown, (*NUMBERS, RATE), padding=0), refresh=True)
