# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs as classes."""

from answer_steps import call_infer, case, explain, infer, raw_input, tensor

from answer_cases import reasons

SCORES = tensor("IN", "FP32", [0.5, 3, -1, 2.25])


def _want(name, **parameters):
    return [{"name": name, "parameters": parameters}]


def _http(name, model, entry, *, count=2, output="OUT", **more):
    return case(f"http: {name}", infer(model, entry, outputs=_want(output, classification=count, **more)))


def _grpc(name, model, entry, *, count=2, output="OUT", **more):
    return case(f"grpc: {name}", call_infer(model, entry, outputs=[(output, {"classification": count, **more})]))


_RAW = raw_input("IN", "FP32", [0.5, 3, -1, 2.25])

CASES = [
    *(_http(f"{count} classes", "scores", SCORES, count=count) for count in (0, 1, 2, 4, 9)),
    *(_http(f"{count!r} classes", "scores", SCORES, count=count) for count in (-1, 1.5, "2", True, None)),
    _http("binary", "scores", SCORES, binary_data=True),
    _http("a batch", "scores_batched", tensor("IN", "INT32", [1, 2, 3, 4, 8, 7, 6, 5], [2, 4])),
    _http("a batch of one", "scores_batched", tensor("IN", "INT32", [1, 2, 3, 4], [1, 4]), count=9),
    *(_http(f"of {datatype}", "every", tensor("X_" + datatype, datatype, [1, 3, 2]), output="Y_" + datatype)
      for datatype in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP32", "FP64")),
    _http("of BOOL", "every", tensor("X_BOOL", "BOOL", [True, False]), output="Y_BOOL"),
    _http("of large values", "scores", tensor("IN", "FP32", [1e20, 1e-20, 123456789])),
    _http("of an unknown output", "scores", SCORES, output="NOBODY"),
    _http("and a region", "scores", SCORES, shared_memory_region="mine"),
    case("http: of too large an output", infer("scores", (
        {"name": "IN", "datatype": "FP32", "shape": [1_000_001], "parameters": {"binary_data_size": 4_000_004}},
        bytes(4_000_004)), outputs=_want("OUT", classification=1))),
    case("http: of the largest output", infer("scores", (
        {"name": "IN", "datatype": "FP32", "shape": [1_000_000], "parameters": {"binary_data_size": 4_000_000}},
        b"\0\0\x80\x3f" + bytes(3_999_996)), outputs=_want("OUT", classification=1))),
    *(_grpc(f"{count!r} classes", "scores", _RAW, count=count) for count in (-1, 0, 1, 2, 9, 1.5, "2", True)),
    _grpc("a batch", "scores_batched", raw_input("IN", "INT32", [1, 2, 3, 4, 8, 7, 6, 5], [2, 4])),
    _grpc("of an unknown output", "scores", _RAW, output="NOBODY"),
    _grpc("and a region", "scores", _RAW, shared_memory_region="mine", shared_memory_byte_size=8),
    case("grpc: of too large an output", call_infer(
        "scores", raw_input("IN", "FP32", bytes(4_000_004), [1_000_001]), outputs=[("OUT", {"classification": 1})])),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: (
        "http: -1 classes", "http: 1.5 classes", "http: '2' classes", "http: True classes", "http: None classes",
    ),
    reasons.CLASSES: ("*: of too large an output",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
