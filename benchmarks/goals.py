# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Goals that were set for some scenarios: a figure beside another server's or another scenario's, or by itself."""

import statistics
from typing import NamedTuple

from tables import spread

FIGURES = {"rate": "requests/s", "p50": "p50", "p99": "p99", "cpu": "CPU", "cpu_below": "CPU of the stub, us"}
IDENTITY_HTTP, IDENTITY_GRPC = "identity,http,c16,vary,wrk", "identity,grpc,c16,vary"
JSON, BINARY = "add_sub,http,c16,repeat,json", "add_sub,http,c16,repeat,wrk"
SCRAPED = "identity,http,c4,vary,wrk"


class Goal(NamedTuple):
    """A figure of a scenario on the first server, and what it shall be.

    It is divided by the same figure of the second server, or of the scenario `beside` on the first one, unless `beside`
    is None: the figure itself then. A higher rate is better, and less of all else. `must` and `aim` may be None.
    """

    scenario: str
    figure: str
    beside: str | None
    must: float | None
    aim: float | None


OTHER_SERVER = ""
GOALS = [
    Goal(IDENTITY_HTTP, "rate", OTHER_SERVER, 2.2, 3),
    Goal(IDENTITY_HTTP, "cpu", OTHER_SERVER, 0.40, 0.3),
    Goal(IDENTITY_GRPC, "rate", OTHER_SERVER, 2, 2.6),
    Goal(IDENTITY_GRPC, "cpu", OTHER_SERVER, 0.45, 0.35),
    Goal(JSON, "rate", OTHER_SERVER, 3, 4),
    Goal(JSON, "cpu", OTHER_SERVER, 0.35, 0.25),
    *(
        goal
        for texts in ("texts,http,c16,{},wrk", "texts,http,c16,{},json", "texts,grpc,c16,{}")
        for goal in (
            Goal(texts.format("vary"), "rate", texts.format("repeat"), 0.85, None),
            Goal(texts.format("vary"), "cpu", texts.format("repeat"), 1.15, None),
        )
    ),
    Goal(BINARY, "rate", OTHER_SERVER, 3, 4),
    Goal(BINARY, "cpu", OTHER_SERVER, 0.30, 0.25),
    Goal("add_sub,http,c1,repeat", "p50", OTHER_SERVER, 0.62, 0.55),
    Goal("add_sub,grpc,c1,repeat", "p50", OTHER_SERVER, 0.62, 0.55),
    *(
        Goal(f"identity,{client},{condition},first", "cpu", f"identity,{client},first", 1.5, 1.2)
        for client in ("http,c16,vary,wrk", "grpc,c16,vary,pygrpc")
        for condition in ("tls", "traces", "pattern", "forward", "restricted")
    ),
    Goal(BINARY, "cpu_below", None, 9, 7),
    Goal(SCRAPED + ",scraped", "p50", SCRAPED, None, None),
    Goal(SCRAPED + ",scraped", "p99", SCRAPED, None, None),
]


def rows_of(runs, names):
    """A row for each goal whose scenario was measured. `runs` are those of a scenario and a server."""
    return [row_of(goal, found(goal, runs, names), names) for goal in GOALS if (goal.scenario, names[0]) in runs]


def found(goal, runs, names):
    """The figure of each turn."""
    own = runs[goal.scenario, names[0]]
    if goal.beside is None:
        return [r[goal.figure] for r in own if r.get(goal.figure)]
    if goal.beside == OTHER_SERVER:
        other = runs.get((goal.scenario, names[1]), []) if len(names) > 1 else []
    else:
        other = runs.get((goal.beside, names[0]), [])
    return [a[goal.figure] / b[goal.figure] for a, b in zip(own, other) if a.get(goal.figure) and b.get(goal.figure)]


def row_of(goal, values, names):
    beside = goal.beside
    if beside == OTHER_SERVER:
        beside = names[1] if len(names) > 1 else "another server"
    words = [goal.scenario, FIGURES[goal.figure], beside or "-", spread(values, 2)]
    return [*words, wanted(goal, goal.must), wanted(goal, goal.aim), verdict(goal, values)]


def wanted(goal, limit):
    if limit is None:
        return "-"
    return f"{'>=' if is_better_higher(goal) else '<='} {limit:g}"


def verdict(goal, values):
    if not values:
        return "not measured"
    if goal.must is None:
        return "-"
    middle = statistics.median(values)
    return "yes" if (middle >= goal.must if is_better_higher(goal) else middle <= goal.must) else "NO"


def is_better_higher(goal):
    return goal.figure == "rate"


HEADINGS = ["scenario", "figure", "beside", "found", "must", "aim", "met"]
