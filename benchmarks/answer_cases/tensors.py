# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Right requests: every datatype in every form on the wire, and shapes of all kinds."""

from answer_steps import (
    NUMPY,
    TYPED,
    Http,
    Stream,
    binary,
    call_infer,
    case,
    compressed,
    contents,
    explain,
    infer,
    infer_message,
    raw_input,
    tensor,
    typed_input,
)

from answer_cases import reasons

VALUES = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 2**16 - 1],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 1, 2**64 - 1],
    "INT8": [-(2**7), 0, 2**7 - 1],
    "INT16": [-(2**15), 0, 2**15 - 1],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "FP16": [-1.5, 0.0, 65504.0],
    "FP32": [-1.5, 0.0, 3.0],
    "FP64": [-1.5, 1e300, 0.1],
    "BYTES": ["", "a", 'h\u00e9 "\\\n'],
}
# Names of the inputs of the model `every`.
INPUTS = {datatype: "X_" + {"BYTES": "STRING"}.get(datatype, datatype) for datatype in [*NUMPY, "BYTES"]}


def _forms(datatype):
    """One case for each form of a request and of its response."""
    name, values = INPUTS[datatype], VALUES[datatype]
    output = "Y" + name[1:]
    as_json, as_binary = tensor(name, datatype, values), binary(name, datatype, values)
    want_binary = [{"name": output, "parameters": {"binary_data": True}}]
    want_json = [{"name": output, "parameters": {"binary_data": False}}]
    yield "json", infer("every", as_json)
    yield "json, nested", infer("every", tensor(name, datatype, [[values[0]], values[1:]], [3]))
    yield "json to binary", infer("every", as_json, outputs=want_binary)
    yield "json to binary, all", infer("every", as_json, parameters={"binary_data_output": True})
    yield "binary to json", infer("every", as_binary, outputs=want_json)
    yield "binary", infer("every", as_binary, outputs=want_binary)
    yield "binary, compressed", compressed(infer("every", as_binary, outputs=want_binary), "gzip")
    yield "empty", infer("every", tensor(name, datatype, []))
    yield "empty, binary", infer("every", binary(name, datatype, []), outputs=want_binary)
    yield "grpc", call_infer("every", raw_input(name, datatype, values))
    yield "grpc, empty", call_infer("every", raw_input(name, datatype, []))
    yield "grpc, stream", Stream((infer_message("every", raw_input(name, datatype, values), id="1"),))
    if datatype in TYPED:
        yield "grpc, typed", call_infer("every", typed_input(name, datatype, values))


def _raw(model, body):
    return Http("POST", f"/v2/models/{model}/infer", body, (("Inference-Header-Content-Length", "0"),))


CASES = [case(f"{datatype}: {form}", step) for datatype in INPUTS for form, step in _forms(datatype)]
CASES += [
    case("all datatypes at once", infer("every", *(binary(INPUTS[each], each, VALUES[each]) for each in INPUTS))),
    case("some json, some binary", infer("every", tensor("X_INT8", "INT8", [1]), binary("X_FP32", "FP32", [2.5]))),
    case("outputs in the client's order", infer(
        "add_sub", tensor("INPUT1", "FP32", [1, 2, 3, 4]), tensor("INPUT0", "FP32", [4, 3, 2, 1]),
        outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}])),
    case("one of two outputs", infer(
        "add_sub", tensor("INPUT0", "FP32", [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4, 3, 2, 1]),
        outputs=[{"name": "OUTPUT1"}])),
    case("no outputs listed", infer(
        "add_sub", tensor("INPUT0", "FP32", [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4, 3, 2, 1]), outputs=[])),
    case("one output binary, one json", infer(
        "add_sub", tensor("INPUT0", "FP32", [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4, 3, 2, 1]),
        outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}])),
    case("binary by default, one of them json", infer(
        "add_sub", tensor("INPUT0", "FP32", [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4, 3, 2, 1]),
        parameters={"binary_data_output": True},
        outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": False}}, {"name": "OUTPUT1"}])),
    case("one of two outputs, grpc", call_infer(
        "add_sub", raw_input("INPUT0", "FP32", [1, 2, 3, 4]), raw_input("INPUT1", "FP32", [4, 3, 2, 1]),
        outputs=["OUTPUT1"])),
    case("typed and typed, grpc", call_infer(
        "add_sub", typed_input("INPUT0", "FP32", [1, 2, 3, 4]), typed_input("INPUT1", "FP32", [4, 3, 2, 1]))),
    case("an id", infer("variable", tensor("IN", "INT32", [1, 2], [1, 2]), id="mine")),
    case("an empty id", infer("variable", tensor("IN", "INT32", [1, 2], [1, 2]), id="")),
    case("an id, grpc", call_infer("variable", raw_input("IN", "INT32", [1, 2], [2, 1]), id="mine")),
    case("two dimensions", infer("variable", tensor("IN", "INT32", [[1, 2], [3, 4], [5, 6]], [3, 2]))),
    case("a dimension of 0", infer("variable", tensor("IN", "INT32", [], [3, 0]))),
    case("a dimension of 0, grpc", call_infer("variable", raw_input("IN", "INT32", [], [0, 3]))),
    case("a batch", infer("batched", tensor("IN", "FP32", [1] * 12, [3, 4]))),
    case("a batch, grpc", call_infer("batched", raw_input("IN", "FP32", [1] * 32, [8, 4]))),
    case("an empty batch", infer("batched", tensor("IN", "FP32", [], [0, 4]))),
    case("a reshape", infer("reshaped", tensor("IN", "FP32", [1, 2], [2, 1]))),
    case("a reshape, grpc", call_infer("reshaped", raw_input("IN", "FP32", [1, 2], [2, 1]))),
    case("optional input left out", infer("optional", tensor("NEEDED", "INT32", [1]))),
    case("optional input given", infer("optional", tensor("NEEDED", "INT32", [1]), tensor("EXTRA", "INT32", [1]))),
    case("NaN and infinity, to json", infer("every", binary("X_FP32", "FP32", [float("nan"), float("inf"),
         -float("inf")]), outputs=[{"name": "Y_FP32", "parameters": {"binary_data": False}}])),
    case("NaN and infinity, binary", infer("every", binary("X_FP64", "FP64", [float("nan"), float("inf")]),
         outputs=[{"name": "Y_FP64", "parameters": {"binary_data": True}}])),
    case("1e39 for FP32", infer("every", tensor("X_FP32", "FP32", [1e39]))),
    case("integers for FP32", infer("every", tensor("X_FP32", "FP32", [1, 2]))),
    case("bytes that are not UTF-8, binary", infer("strings", binary("IN", "BYTES", [b"\xff\x00"]),
         parameters={"binary_data_output": True})),
    case("bytes that are not UTF-8, grpc", call_infer("strings", raw_input("IN", "BYTES", [b"\xff\x00"]))),
    case("many strings", infer("strings", tensor("IN", "BYTES", [str(each) for each in range(1000)]))),
    case("raw: fixed", _raw("fixed", contents("FP32", range(6)))),
    case("raw: one variable dimension", _raw("one_variable", contents("INT16", range(6)))),
    case("raw: batched", _raw("batched", contents("FP32", range(4)))),
    case("raw: text", _raw("text", b"hello")),
    case("raw: empty text", _raw("text", b"")),
    case("raw: two variable dimensions", _raw("variable", contents("INT32", range(4)))),
    case("raw: two inputs", _raw("add_sub", contents("FP32", range(4)))),
    case("raw: wrong size", _raw("fixed", contents("FP32", range(5)))),
    case("raw: size that no shape has", _raw("one_variable", contents("INT16", range(5)))),
    case("raw: strings of no fixed shape", _raw("strings", b"hello")),
    case("a version", Http("POST", "/v2/models/versions/versions/1/infer",
         infer("versions", tensor("IN", "INT32", [1])).body)),
    case("the newest version", infer("versions", tensor("IN", "INT32", [1]))),
    case("a version, grpc", call_infer("versions", raw_input("IN", "INT32", [1]), model_version="1")),
    case("a completed configuration", infer("completed", tensor("IN", "INT32", [1, 2], [1, 2]))),
]  # fmt: skip

DIFFERENT = {
    reasons.EMPTY_BINARY: ("*: empty, binary",),
    reasons.FP16: ("FP16: json*", "FP16: binary to json", "FP16: empty", "all datatypes at once",),
    reasons.LISTED: ("binary by default, one of them json",),
    reasons.EMPTY_BATCH: ("an empty batch",),
    reasons.RAW_NAME: ("raw: wrong size", "raw: size that no shape has",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
