# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses from the cache `local`. The models count their executions, so that an answer says where it comes from."""

from answer_steps import (
    Settled,
    Stream,
    binary,
    call,
    call_infer,
    case,
    explain,
    generate,
    get,
    infer,
    infer_message,
    post,
    raw_input,
    tensor,
)

from answer_cases import reasons


def _ask(*values, model="cached", shape=None, **more):
    return infer(model, tensor("IN", "INT32", list(values), shape or [1, len(values)]), **more)


def _message(*values):
    return raw_input("IN", "INT32", list(values), [1, len(values)])


SUM = [{"name": "SUM"}]

CASES = [
    case("configuration", get("/v2/models/cached/config")),
    case("twice", _ask(1), _ask(1)),
    case("statistics", Settled(get("/v2/models/cached/stats"))),
    case("statistics, grpc", call("ModelStatistics", name="cached")),
    case("others between", _ask(2), _ask(3), _ask(2), _ask(3)),
    case("another order of numbers", _ask(4, 5), _ask(5, 4)),
    case("with an id", _ask(6), _ask(6, id="mine")),
    case("with parameters", _ask(7), _ask(7, parameters={"custom": 1})),
    case("binary", _ask(8), infer("cached", binary("IN", "INT32", [8], [1, 1])),
         _ask(8, parameters={"binary_data_output": True})),
    case("grpc", _ask(9), call_infer("cached", _message(9)), call_infer("cached", _message(9), id="mine")),
    case("a stream", _ask(10), Stream((infer_message("cached", _message(10), id="b"),))),
    case("generate", generate("cached", {"IN": [[11]]}), generate("cached", {"IN": [[11]]})),
    case("one output", _ask(12, outputs=SUM), _ask(12, outputs=SUM)),
    case("one output, then all", _ask(13, outputs=SUM), _ask(13)),
    case("all outputs, then one", _ask(14), _ask(14, outputs=SUM)),
    case("another shape", _ask(15, 16, shape=[1, 2]), _ask(15, 16, shape=[2, 1])),
    case("no elements", _ask(shape=[0, 1]), _ask(shape=[0, 1])),
    case("an error", _ask(-1), _ask(-1)),
    case("a refused request", _ask(17, shape=[1, 1, 1]), _ask(17)),
    case("of a model without a cache", _ask(1, model="counted"), _ask(1, model="counted")),
    case("an ensemble", _ask(1, model="ensemble_cached"), _ask(1, model="ensemble_cached")),
    case("an ensemble, grpc", call_infer("ensemble_cached", _message(1), id="mine")),
    case("an ensemble: statistics", Settled(get("/v2/models/ensemble_cached/stats")),
         Settled(get("/v2/models/counted/stats"))),
    case("a step", _ask(20, model="ensemble_of_cached"), _ask(20, model="ensemble_of_cached"), _ask(20)),
    case("behind a load", _ask(21), post("/v2/repository/models/cached/load"), _ask(21)),
    case("behind another load", post("/v2/repository/models/cached/unload"), post("/v2/repository/models/cached/load"),
         _ask(21)),
]  # fmt: skip

DIFFERENT = {
    reasons.CACHE_KEY: ("one output, then all", "all outputs, then one", "another shape", "a step"),
    reasons.CACHED_ERRORS: ("an error",),
}
CASES = explain(CASES, DIFFERENT)
