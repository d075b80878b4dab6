# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime stats`: what models have done, once or again and again."""

from __future__ import annotations

import time

from rich.live import Live

from pyruntime.runtime.cli.commands.client import ServerClient, model_path
from pyruntime.runtime.cli.commands.show import print_json, show_table, table
from pyruntime.runtime.cli.commands.statistics import HEADINGS, NUMBERS, RATE, Statistics, rows

# As often as a person can follow.
WATCH_S = 1.0


def run_stats(url: str, model: str, watch: bool, as_json: bool) -> int:
    """Print the statistics of a model, or of all for "". Raises CommandError."""
    client = ServerClient(url)
    statistics = _ask(client, model)
    if watch:
        try:
            _watch(client, model, statistics, as_json)
        except KeyboardInterrupt:
            return 0  # it is how watching ends
    if as_json:
        print_json(statistics)
    else:
        show_table(HEADINGS, rows(statistics), NUMBERS)
    return 0


def _ask(client: ServerClient, model: str) -> Statistics:
    if not model:
        found = client.get("/v2/models/stats", "model_stats")
    else:
        with client.about(model):
            found = client.get(f"{model_path(model)}/stats", "model_stats")
    statistics: Statistics = found["model_stats"]
    return statistics


def _watch(client: ServerClient, model: str, statistics: Statistics, as_json: bool) -> None:
    """Until Ctrl-C: one table that is written anew, or line after line for machines."""
    if as_json:
        while True:
            print_json(statistics)
            time.sleep(WATCH_S)
            statistics = _ask(client, model)
    with Live(table(HEADINGS, rows(statistics), NUMBERS), auto_refresh=False) as live:
        asked = time.monotonic()
        while True:
            time.sleep(WATCH_S)
            before, statistics = statistics, _ask(client, model)
            elapsed_s, asked = time.monotonic() - asked, time.monotonic()
            shown = rows(statistics, before, elapsed_s)
            live.update(table((*HEADINGS, RATE), shown, (*NUMBERS, RATE)), refresh=True)
