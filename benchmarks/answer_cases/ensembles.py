# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to ensembles of Python models: what steps are told, errors, decoupled steps, statistics, and loads."""

import json

from answer_steps import (
    Settled,
    Stream,
    call,
    call_infer,
    case,
    explain,
    generate,
    generate_stream,
    get,
    infer,
    infer_message,
    post,
    raw_input,
    tensor,
)

from answer_cases import reasons

IN = tensor("IN", "INT32", [1])
HOW = ("ALREADY_EXISTS", "CANCELLED", "INTERNAL", "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "UNKNOWN", "UNSUPPORTED",
       "model exception", "another exception", "no outputs", "datatype", "name")  # fmt: skip
UNLOAD = post("/v2/repository/models/ensemble_later/unload")


def _batched(*rows):
    return infer("ensemble_batched", tensor("IN", "FP32", [1.5] * 4 * len(rows), [len(rows), 4]))


def _repeat(count):
    return Stream((infer_message("ensemble_repeat", raw_input("COUNT", "INT32", [count])),))


def _step(model="plus", reads=("IN", "IN"), writes=("OUT", "OUT")):
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": dict([reads]) if reads else {},
        "output_map": dict([writes]) if writes else {},
    }


def _load(*steps, dims=(1,), **more):
    """Load an ensemble whose configuration comes with the load."""
    config = {
        "name": "ensemble_later",
        "platform": "ensemble",
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": list(dims)}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
        "ensemble_scheduling": {"step": list(steps)},
        **more,
    }
    parameters = {"config": json.dumps(config), "file:1/nothing": ""}
    return post("/v2/repository/models/ensemble_later/load", {"parameters": parameters})


CASES = [
    case("metadata", get("/v2/models/ensemble_two"), get("/v2/models/ensemble_repeat"),
         get("/v2/models/ensemble_batched")),
    case("configuration", get("/v2/models/ensemble_two/config"), get("/v2/models/ensemble_repeat/config")),
    case("configuration, grpc", call("ModelConfig", name="ensemble_nested")),
    case("two outputs", infer("ensemble_two", IN)),
    case("the first output", infer("ensemble_two", IN, outputs=[{"name": "A"}]), Settled(
        get("/v2/models/ensemble_two/stats"))),
    case("the second output", infer("ensemble_two", IN, outputs=[{"name": "B"}])),
    case("an unknown output", infer("ensemble_two", IN, outputs=[{"name": "C"}])),
    case("an ensemble in an ensemble", infer("ensemble_nested", IN)),
    case("an ensemble in an ensemble, grpc", call_infer("ensemble_nested", raw_input("IN", "INT32", [1]))),
    case("a batch", _batched(1, 2, 3)),
    case("a batch that is too large", _batched(*range(9))),
    case("no input", infer("ensemble_two")),
    case("another datatype", infer("ensemble_two", tensor("IN", "FP32", [1.0]))),
    case("another shape", infer("ensemble_two", tensor("IN", "INT32", [1, 2]))),
    case("what a step is told", infer("ensemble_told", IN, id="mine", parameters={
        "timeout": 5_000_000, "custom": "text", "number": 7})),
    case("what a step is told of a sequence", infer("ensemble_told", IN, parameters={
        "sequence_id": 5, "sequence_start": True, "sequence_end": True})),
    case("what a step is told, grpc", call_infer("ensemble_told", raw_input("IN", "INT32", [1]), id="mine", parameters={
        "custom": "text", "sequence_id": "five", "sequence_start": True})),
    *(case(f"a step fails: {how}", infer("ensemble_failing", tensor("HOW", "BYTES", [how]))) for how in HOW),
    case("a step fails, grpc", call_infer("ensemble_failing", raw_input("HOW", "BYTES", ["NOT_FOUND"]), id="mine")),
    case("an optional input", infer("ensemble_optional", tensor("NEEDED", "INT32", [1]))),
    case("an optional input that is there",
         infer("ensemble_optional", tensor("NEEDED", "INT32", [1]), tensor("EXTRA", "INT32", [2]))),
    case("generate", generate("ensemble_two", {"IN": 1})),
    case("a decoupled step without responses", _repeat(0)),
    case("a decoupled step, infer", infer("ensemble_repeat", tensor("COUNT", "INT32", [1]))),
    case("a decoupled step, generate_stream", generate_stream("ensemble_repeat", {"COUNT": 2})),
    case("statistics", infer("ensemble_batched", tensor("IN", "FP32", [1.5] * 8, [2, 4])),
         Settled(get("/v2/models/ensemble_batched/stats"))),
    case("statistics of failures", infer("ensemble_failing", tensor("HOW", "BYTES", ["NOT_FOUND"])),
         Settled(get("/v2/models/ensemble_failing/stats"))),
    case("load", _load(_step()), infer("ensemble_later", IN), get("/v2/models/ensemble_later/config"), UNLOAD),
    case("load without steps", _load()),
    case("load with instances", _load(_step(), instance_group=[{"count": 1}])),
    case("load with an unknown model", _load(_step("nobody"))),
    case("load with a model that did not load", _load(_step("broken"))),
    case("load with an unknown input", _load(_step(reads=("ELSE", "IN")))),
    case("load with an unknown output", _load(_step(writes=("ELSE", "OUT")))),
    case("load with a tensor that is not used", _load(_step(), _step(writes=("OUT", "unused")))),
    case("load with a tensor that is not written", _load(_step(reads=("IN", "unwritten")))),
    case("load with another datatype", _load(_step("batched"))),
    case("load with another shape", _load(_step(), dims=(1, 2))),
    case("load with warm-up", _load(_step(), model_warmup=[{"name": "s", "batch_size": 1, "inputs": {
        "IN": {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}}}]), UNLOAD),
]  # fmt: skip

DIFFERENT = {
    reasons.OUTPUT_ORDER: ("two outputs",),
    reasons.UNREQUESTED: ("the first output", "the second output", "an ensemble in an ensemble*"),
    reasons.STEP_NAMED: (*(f"a step fails: {how}" for how in HOW[:8]), "a step fails, grpc"),
    reasons.UNKNOWN_OUTPUT: ("a step fails: name",),
    reasons.COUNTED: ("statistics",),
    reasons.ONE_FAILURE: ("statistics of failures",),
    reasons.MAX_INFLIGHT: ("configuration", "load"),
    reasons.POLL: ("load without steps", "load with instances", "load with a tensor*"),
    reasons.ENSEMBLE_WARMUP: ("load with warm-up",),
}
CASES = explain(CASES, DIFFERENT)
