# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Who is measured when: the scenarios of a group on all servers in turns, and the servers that conditions need."""

import contextlib
import sys
from typing import Any, NamedTuple

import conditions
from answers import verify
from measurement import measure_quietly
from servers import NotReady


class Entry(NamedTuple):
    """A scenario and a server that is measured with it."""

    scenario: Any
    server: Any


def entries_of(group, servers, folder):
    """All that a group measures. Scenarios with the same condition and protocol share a server."""
    entries, special = [], {}
    for sc in group:
        for base in servers[:1] if sc.first else servers:
            server = base
            options = conditions.options_of(sc, folder)
            if options:
                conditions.prepare(sc, folder)
                key = (base.name, *options)
                special[key] = special.get(key) or base.with_options(options, f"{sc.condition}-{sc.protocol}")
                server = special[key]
            entries.append(Entry(sc, server))
    return entries


@contextlib.contextmanager
def turn_of(server, opts):
    """A turn of a server, which is up for as long as that, or before and after it as well."""
    if opts.restart:
        server.start(opts.start_timeout)
    try:
        yield
    finally:
        if opts.restart:
            server.stop()


@contextlib.contextmanager
def special_servers(entries, servers, opts):
    """The servers that only this group has, up as long as that; the entries of those that get ready."""
    special = {id(e.server): e.server for e in entries if e.server not in servers}
    failed = set()
    try:
        for key, server in special.items():
            try:
                if not opts.restart:
                    server.start(opts.start_timeout)
            except NotReady as e:
                failed.add(key)
                print(f"not measured: {e}", file=sys.stderr)
        yield [e for e in entries if id(e.server) not in failed]
    finally:
        for server in special.values():
            server.stop()


def answers_rightly(entry, opts):
    with turn_of(entry.server, opts):
        problem = verify(entry.scenario, entry.server, opts)
    if problem:
        where = f"{entry.scenario.text}: {entry.server.name}"
        print(f"{where} answers wrongly, not measured: {problem}", file=sys.stderr)
    return not problem


def measure_group(group, servers, opts, scratch, results):
    """The runs of a group by scenario and the names of servers, which are also added to `results`."""
    entries = entries_of(group, servers, scratch)
    runs = {(e.scenario.text, e.server.name): [] for e in entries}
    with special_servers(entries, servers, opts) as ready:
        right = [e for e in ready if answers_rightly(e, opts)]
        known = [*servers, *{id(e.server): e.server for e in ready if e.server not in servers}.values()]
        for turn in range(opts.repeats):
            for sc, server in right:
                with turn_of(server, opts):
                    r = measure_quietly(sc, server, known, opts, scratch)
                if "error" in r:
                    print(f"{sc.text} on {server.name}, turn {turn + 1}: {r['error']}", file=sys.stderr)
                runs[sc.text, server.name].append(r)
                results.append({"scenario": sc.text, "server": server.name, "turn": turn, **r})
    return runs
