# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of requests, and headers that go to the model, as the model reads them."""

from answer_steps import Http, Stream, call_infer, case, explain, infer, infer_message, raw_input, tensor

from answer_cases import reasons

IN = tensor("IN", "INT32", [1])
RAW = raw_input("IN", "INT32", [1])


def _http(name, parameters, *headers, **members):
    step = infer("told", IN, parameters=parameters, **members)
    return case(f"http: {name}", Http(step.method, step.path, step.body, (*step.headers, *headers)))


def _grpc(name, parameters, *metadata, **fields):
    return case(f"grpc: {name}", call_infer("told", RAW, parameters=parameters, metadata=metadata, **fields))


_VALUES = {
    "a text": "x", "an empty text": "", "an integer": 7, "a negative integer": -7, "2^63 - 1": 2**63 - 1,
    "a boolean": True, "a double": 1.5,
}  # fmt: skip
_RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")

CASES = [
    case("http: none", infer("told", IN)),
    case("http: an id", infer("told", IN, id="mine")),
    _http("empty", {}),
    *(_http(name, {"mine": value}) for name, value in _VALUES.items()),
    _http("2^63", {"mine": 2**63}),
    _http("null", {"mine": None}),
    _http("a list", {"mine": ["a"]}),
    _http("an object", {"mine": {}}),
    _http("several", {"a": 1, "b": "two", "c": False}),
    _http("an empty name", {"": 1}),
    _http("a reserved name", {"triton_mine": 1}),
    _http("triton_enable_empty_final_response", {"triton_enable_empty_final_response": True}),
    *(_http(f"{name} is a text", {name: "x"}) for name in _RESERVED),
    *(_http(f"{name} is a boolean", {name: True}) for name in _RESERVED),
    *(_http(f"{name} is an integer", {name: 5}) for name in _RESERVED),
    _http("sequence_id is negative", {"sequence_id": -1}),
    _http("timeout is negative", {"timeout": -1}),
    _http("sequence_id is 2^64 - 1", {"sequence_id": 2**64 - 1}),
    _http("sequence_id is long", {"sequence_id": "x" * 200}),
    _http("all of a sequence", {"sequence_id": 5, "sequence_start": True, "sequence_end": True}),
    _http("outputs by name", {}, outputs=[{"name": "TOLD"}]),
    _http("a header that is forwarded", {}, ("X-Mine", "a")),
    _http("a header that is not forwarded", {}, ("Mine", "a")),
    _http("two headers that are forwarded", {"mine": 1}, ("X-Mine", "a"), ("x-yours", "b")),
    _http("a header and a parameter of one name", {"X-Mine": 1}, ("X-Mine", "a")),
    case("grpc: none", call_infer("told", RAW)),
    case("grpc: an id", call_infer("told", RAW, id="mine")),
    *(_grpc(name, {"mine": value}) for name, value in _VALUES.items()),
    _grpc("no value", {"mine": ("string_param", "")}),
    _grpc("an unsigned integer", {"mine": ("uint64_param", 7)}),
    _grpc("a reserved name", {"triton_mine": 1}),
    _grpc("triton_enable_empty_final_response", {"triton_enable_empty_final_response": True}),
    _grpc("triton_enable_empty_final_response is a text", {"triton_enable_empty_final_response": "x"}),
    *(_grpc(f"{name} is a text", {name: "x"}) for name in _RESERVED),
    *(_grpc(f"{name} is a boolean", {name: True}) for name in _RESERVED),
    *(_grpc(f"{name} is an integer", {name: 5}) for name in _RESERVED),
    *(_grpc(f"{name} is a double", {name: 1.5}) for name in _RESERVED),
    _grpc("sequence_id is negative", {"sequence_id": -1}),
    _grpc("priority is negative", {"priority": -1}),
    _grpc("priority is unsigned", {"priority": ("uint64_param", 1)}),
    _grpc("timeout is unsigned", {"timeout": ("uint64_param", 1)}),
    _grpc("metadata that is forwarded", {}, ("x-mine", "a")),
    _grpc("metadata that is not forwarded", {}, ("mine", "a")),
    _grpc("outputs by name", {}, outputs=["TOLD"]),
    case("grpc: parameters in a stream", Stream((infer_message("told", RAW, id="1", parameters={"mine": 1}),))),
    case("grpc: a reserved name in a stream",
         Stream((infer_message("told", RAW, id="1", parameters={"triton_mine": 1}),))),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: (
        "http: sequence_start is a text", "http: sequence_start is an integer", "http: sequence_end is a text",
        "http: sequence_end is an integer", "http: priority is a text", "http: timeout is a text",
        "http: binary_data_output is a text", "http: sequence_id is a boolean", "http: priority is a boolean",
        "http: timeout is a boolean", "http: binary_data_output is an integer", "http: sequence_id is negative",
        "http: timeout is negative",
    ),
    reasons.UNSIGNED: ("grpc: an unsigned integer",),
    reasons.STREAM_ERRORS: ("grpc: a reserved name in a stream",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
