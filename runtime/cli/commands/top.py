# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime top`: shows the models of a server, their queues, rates, latencies and memory, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pyruntime.runtime.cli.commands.client import CommandError, Refused, ServerClient
from pyruntime.runtime.cli.commands.samples import Samples, Sort, View, WatchDocument
from pyruntime.runtime.cli.commands.show import print_json, table
from pyruntime.runtime.cli.commands.top_table import LEFT, headline, notes, table_of
from pyruntime.runtime.cli.text import printable

# No line of the server's log has a larger number: the document comes without them.
_NO_LOG = 1 << 62
_PATH = "/page/watch"
# A server that takes longer is as good as gone, in seconds. The page waits as long.
RESPONSE_S_MAX = 10.0


def run_top(client: ServerClient, sort: Sort, interval_s: float, once: bool, as_json: bool) -> int:
    """Show the models every `interval_s` seconds, or `once`, after one interval. Raises CommandError."""
    samples = Samples(sort)
    first = samples.view(_ask(client))
    try:
        if once:
            time.sleep(interval_s)
            _print(samples.view(_ask(client)), client.url, as_json)
        elif as_json or not Console().is_terminal:
            for view, problem in _follow(client, samples, first, interval_s):
                if problem:
                    print(printable(problem), file=sys.stderr, flush=True)
                else:
                    _print(view, client.url, as_json)
        else:
            _show(_follow(client, samples, first, interval_s), client.url)
    except KeyboardInterrupt:
        pass  # the usual end, and no failure
    return 0


def _ask(client: ServerClient) -> WatchDocument:
    try:
        document = client.post(_PATH, {"log_after": _NO_LOG})
    except Refused as exc:
        raise Refused(f"{client.url} has no {_PATH}: top is for pyruntime, and stats --watch for any server") from exc
    if not isinstance(document, dict) or "server" not in document:
        raise Refused(f"{client.url} does not answer as a server does; is it the port of its HTTP?")
    return cast("WatchDocument", document)


def _follow(client: ServerClient, samples: Samples, view: View, interval_s: float) -> Iterator[tuple[View, str]]:
    """The latest view, and why there is no newer one, "" if it is new; forever."""
    problem = ""
    while True:
        yield view, problem
        time.sleep(interval_s)
        try:
            view, problem = samples.view(_ask(client)), ""
        except CommandError as exc:
            problem = problem or f"{exc}; since {time.strftime('%H:%M:%S')}, trying again"


def _show(views: Iterator[tuple[View, str]], url: str) -> None:
    with Live(auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        for view, problem in views:
            live.update(_drawing(view, url, problem), refresh=True)


def _drawing(view: View, url: str, problem: str) -> RenderableType:
    headings, rows = table_of(view, Console().width)
    right = [heading for heading in headings if heading not in LEFT]
    lines = [Text(printable(line), style="yellow") for line in notes(view)]
    # What is shown of a server that is gone is old.
    first = (
        Text(printable(problem), style="bold red") if problem else Text(printable(headline(view, url)), style="bold")
    )
    return Group(first, table(headings, rows, right, padding=0), *lines)


def _print(view: View, url: str, as_json: bool) -> None:
    if as_json:
        print_json(view.to_json())
    else:
        Console(highlight=False).print(_drawing(view, url, ""))
