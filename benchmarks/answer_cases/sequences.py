# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of sequences, in both strategies."""

from answer_steps import Stream, call_infer, case, explain, infer, infer_message, raw_input, tensor

from answer_cases import reasons

MODELS = ("sequence_direct", "sequence_oldest")


def _http(model, value, id=None, *, shape=(1, 1), **flags):
    parameters = {f"sequence_{name}": each for name, each in flags.items()}
    if id is not None:
        parameters["sequence_id"] = id
    return infer(model, tensor("IN", "INT32", [value] * shape[0], list(shape)), parameters=parameters)


def _message(model, value, id, **flags):
    parameters = {"sequence_id": id, **{f"sequence_{name}": each for name, each in flags.items()}}
    return infer_message(model, raw_input("IN", "INT32", [value], [1, 1]), parameters=parameters)


def _cases(model, base):
    yield "three requests", (_http(model, 1, base, start=True), _http(model, 2, base), _http(model, 3, base, end=True))
    yield "one request", (_http(model, 1, base + 1, start=True, end=True),)
    yield "two sequences", (
        _http(model, 1, base + 2, start=True), _http(model, 10, base + 3, start=True),
        _http(model, 2, base + 2, end=True), _http(model, 20, base + 3, end=True),
    )  # fmt: skip
    yield "no start", (_http(model, 1, base + 4),)
    yield "an end without a start", (_http(model, 1, base + 5, end=True),)
    yield "behind the end", (_http(model, 1, base + 6, start=True, end=True), _http(model, 2, base + 6))
    yield "a start in the middle", (
        _http(model, 1, base + 7, start=True), _http(model, 2, base + 7, start=True),
        _http(model, 3, base + 7, end=True),
    )  # fmt: skip
    yield "no id", (_http(model, 1, start=True),)
    yield "id 0", (_http(model, 1, 0, start=True),)
    yield "nothing at all", (_http(model, 1),)
    yield "a batch of two", (_http(model, 1, base + 8, shape=(2, 1), start=True, end=True),)
    yield "a control from the client", (
        infer(model, tensor("IN", "INT32", [1], [1, 1]), tensor("START", "INT32", [1], [1, 1]),
              parameters={"sequence_id": base + 9, "sequence_start": True, "sequence_end": True}),
    )  # fmt: skip
    yield "a text as id", (_http(model, 1, "mine", start=True, end=True),)
    yield "a large id", (_http(model, 1, 2**63, start=True, end=True),)
    yield "grpc", (
        call_infer(model, raw_input("IN", "INT32", [1], [1, 1]), parameters={
            "sequence_id": base + 10, "sequence_start": True}),
        call_infer(model, raw_input("IN", "INT32", [2], [1, 1]), parameters={
            "sequence_id": base + 10, "sequence_end": True}),
    )  # fmt: skip
    yield "no start, grpc", (Stream((_message(model, 1, base + 11),)),)
    yield "a stream", (
        Stream((_message(model, 1, base + 12, start=True), _message(model, 2, base + 12),
                _message(model, 3, base + 12, end=True))),
    )  # fmt: skip


CASES = [
    case(f"{model}: {name}", *steps)
    for number, model in enumerate(MODELS)
    for name, steps in _cases(model, 100 * (number + 1))
]
CASES += [
    case("a sequence for a model without them", infer(
        "told", tensor("IN", "INT32", [1]), parameters={"sequence_id": 1, "sequence_start": True})),
]  # fmt: skip

DIFFERENT = {
    reasons.ORDER: ("*: a control from the client",),
    reasons.TEXT_IDS: ("*: a text as id",),
    reasons.STREAM_ERRORS: ("*: no start, grpc",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
