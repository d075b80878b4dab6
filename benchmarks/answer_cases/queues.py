# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that wait: priority levels, full queues and time-outs. A stream sends its requests at once."""

from answer_steps import Settled, Stream, call_infer, case, explain, get, infer, infer_message, raw_input, tensor

from answer_cases import reasons

BUSY_MS = 700


def _ask(model, ms=0, id="", **parameters):
    return infer_message(model, raw_input("MS", "INT32", [ms], [1, 1]), id=id, parameters=parameters)


def _behind(model, *waiting, ms=BUSY_MS):
    """A stream whose first requests keep the model busy; Triton takes one more ahead."""
    return Stream((_ask(model, ms, "busy", priority=1), _ask(model, 0, "next", priority=1), *waiting))


def _one(model, **parameters):
    return infer(model, tensor("MS", "INT32", [0], [1, 1]), parameters=parameters)


def _levels(*levels):
    return _behind("queue_levels", *(_ask("queue_levels", 0, f"{n}: level {p}", priority=p)
                                     for n, p in enumerate(levels)))  # fmt: skip


CASES = [
    case("levels: configuration", get("/v2/models/queue_levels/config")),
    case("levels: the highest first", _levels(3, 2, 1)),
    case("levels: in order within a level", _levels(3, 1, 3, 1, 2, 1)),
    case("levels: the default one", _levels(3, 0, 1)),
    case("levels: one that is not there", _one("queue_levels", priority=9)),
    case("levels: one request", _one("queue_levels", priority=3)),
    case("levels: a large number", _one("queue_levels", priority=2**40)),
    case("levels: none in the model", infer("plus", tensor("IN", "INT32", [1]), parameters={"priority": 3})),
    case("levels: below 0", _one("queue_levels", priority=-1)),
    case("levels: a text", _one("queue_levels", priority="1")),
    case("levels: grpc", call_infer("queue_levels", raw_input("MS", "INT32", [0], [1, 1]), parameters={"priority": 3})),
    case("limited: configuration", get("/v2/models/queue_limited/config")),
    case("limited: too late", _behind("queue_limited", _ask("queue_limited", id="late"))),
    case("limited: too late by the client's time",
         _behind("queue_limited", _ask("queue_limited", id="late", timeout=50_000), ms=250)),
    case("limited: the client wants more time than the model gives",
         _behind("queue_limited", _ask("queue_limited", id="late", timeout=5_000_000))),
    case("limited: full", _behind("queue_limited", *(_ask("queue_limited", id=str(n)) for n in range(8)), ms=100)),
    case("limited: statistics", Settled(get("/v2/models/queue_limited/stats"))),
    case("delays: configuration", get("/v2/models/queue_delays/config")),
    case("delays: behind those in time",
         _behind("queue_delays", _ask("queue_delays", id="late", timeout=1_000), _ask("queue_delays", id="in time"),
                 ms=50)),
    case("delays: all are late", _behind("queue_delays", *(_ask("queue_delays", id=str(n)) for n in range(3)))),
    case("delays: statistics", Settled(get("/v2/models/queue_delays/stats"))),
    case("a timeout for a model without queue policy", infer("plus", tensor("IN", "INT32", [1]), parameters={
        "timeout": 1})),
    case("a timeout that is a text", _one("queue_limited", timeout="1")),
    case("a timeout below 0", _one("queue_limited", timeout=-1)),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: ("levels: below 0", "levels: a text", "a timeout that is a text", "a timeout below 0"),
    reasons.STREAM_VERSIONS: ("limited: too late*", "limited: the client wants more*"),
    reasons.EXACT_TIMES: ("limited: full", "delays: behind those in time"),
    reasons.COUNTED: ("limited: statistics",),
}
CASES = explain(CASES, DIFFERENT)
