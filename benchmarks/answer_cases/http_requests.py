# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong requests over HTTP."""

import json

from answer_steps import Http, binary, case, compressed, document, explain, infer, tensor

from answer_cases import reasons

GOOD = {"name": "IN", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}


def _changed(**members):
    """The good document with an input that is changed; None takes a member away."""
    entry = {name: value for name, value in {**GOOD, **members}.items() if value is not None}
    return document("variable", {"inputs": [entry]})


def _with(*, headers=(), path="/v2/models/variable/infer", method="POST", body=None):
    return Http(method, path, json.dumps({"inputs": [GOOD]}).encode() if body is None else body, headers)


def _nested(depth):
    text = json.dumps({"inputs": [{**GOOD, "data": 0}]}).replace(
        '"data": 0', '"data": ' + "[" * depth + "1" + "]" * depth
    )
    return document("variable", text.encode())


CASES = [
    # Documents that cannot be read.
    case("an empty body", document("variable", b"")),
    case("no JSON", document("variable", b"hello")),
    case("half a document", document("variable", b'{"inputs": [')),
    case("a list", document("variable", [])),
    case("null", document("variable", None)),
    case("something behind the document", document("variable", json.dumps({"inputs": [GOOD]}).encode() + b" x")),
    case("data of a nesting of 50", _nested(50)),
    case("data of a nesting of 150", _nested(150)),
    # Members of the document.
    case("no inputs", document("variable", {})),
    case("inputs are an object", document("variable", {"inputs": {}})),
    case("inputs are null", document("variable", {"inputs": None})),
    case("inputs are empty", document("variable", {"inputs": []})),
    case("an input is a number", document("variable", {"inputs": [1]})),
    case("id is a number", document("variable", {"id": 1, "inputs": [GOOD]})),
    case("id is null", document("variable", {"id": None, "inputs": [GOOD]})),
    case("parameters are a list", document("variable", {"parameters": [], "inputs": [GOOD]})),
    case("unknown members", document("variable", {"mine": 1, "inputs": [{**GOOD, "yours": 2}]})),
    case("outputs are a number", document("variable", {"inputs": [GOOD], "outputs": 1})),
    case("an output is a string", document("variable", {"inputs": [GOOD], "outputs": ["OUT"]})),
    case("an output without a name", document("variable", {"inputs": [GOOD], "outputs": [{}]})),
    case("an unknown output", document("variable", {"inputs": [GOOD], "outputs": [{"name": "NOBODY"}]})),
    case("an output twice", document("variable", {"inputs": [GOOD], "outputs": [{"name": "OUT"}, {"name": "OUT"}]})),
    case("an output twice, with an id",
         document("variable", {"id": "mine", "inputs": [GOOD], "outputs": [{"name": "OUT"}, {"name": "OUT"}]})),
    case("binary_data is a number",
         document("variable", {"inputs": [GOOD], "outputs": [{"name": "OUT", "parameters": {"binary_data": 1}}]})),
    case("binary_data_output is a number",
         document("variable", {"inputs": [GOOD], "parameters": {"binary_data_output": 1}})),
    # Members of an input.
    *(case(f"no {member}", _changed(**{member: None})) for member in ("name", "datatype", "shape", "data")),
    case("name is a number", _changed(name=1)),
    case("another name", _changed(name="NOBODY")),
    case("datatype is a number", _changed(datatype=1)),
    case("an unknown datatype", _changed(datatype="INT128")),
    case("a datatype in small letters", _changed(datatype="int32")),
    case("another datatype", _changed(datatype="INT64")),
    case("shape is a number", _changed(shape=1)),
    case("a text in the shape", _changed(shape=["1", "2"])),
    case("a double in the shape", _changed(shape=[1.0, 2])),
    case("-1 in the shape", _changed(shape=[-1, 2])),
    case("-2 in the shape", _changed(shape=[-2, 2])),
    case("2^63 in the shape", infer("fragile", {**GOOD, "shape": [2**63, 2]})),
    case("2^64 in the shape", _changed(shape=[2**64, 2])),
    case("too many elements in all", infer("fragile", {**GOOD, "shape": [2**62, 4]})),
    case("too many bytes in all", infer("fragile", {**GOOD, "shape": [2**61, 1]})),
    case("too few dimensions", _changed(shape=[2])),
    case("too many dimensions", _changed(shape=[1, 2, 1])),
    case("no dimensions", _changed(shape=[])),
    case("data is a number", _changed(data=1)),
    case("data is an object", _changed(data={})),
    case("data is null", document("variable", {"inputs": [{**GOOD, "data": None}]})),
    case("too few data", _changed(data=[1])),
    case("too many data", _changed(data=[1, 2, 3])),
    case("a text for INT32", _changed(data=["1", 2])),
    case("a double for INT32", _changed(data=[1.5, 2])),
    case("a boolean for INT32", _changed(data=[True, 2])),
    case("null for INT32", _changed(data=[None, 2])),
    case("an object for INT32", _changed(data=[{}, 2])),
    case("2^31 for INT32", _changed(data=[2**31, 2])),
    case("2^64 for INT32", _changed(data=[2**64, 2])),
    case("-1 for UINT8", infer("every", tensor("X_UINT8", "UINT8", [-1]))),
    case("256 for UINT8", infer("every", tensor("X_UINT8", "UINT8", [256]))),
    case("a number for BOOL", infer("every", tensor("X_BOOL", "BOOL", [1]))),
    case("a number for BYTES", infer("strings", tensor("IN", "BYTES", [1]))),
    case("a text for FP32", infer("every", tensor("X_FP32", "FP32", ["1"]))),
    case("data twice",
         document("variable", {"inputs": [{**GOOD, "parameters": {"binary_data_size": 8}}]})),
    case("parameters of an input are a list", _changed(parameters=[1])),
    case("an input twice", document("variable", {"inputs": [GOOD, GOOD]})),
    case("one input is missing", infer("add_sub", tensor("INPUT0", "FP32", [1, 2, 3, 4]))),
    case("all inputs are missing", infer("add_sub")),
    case("one input is too many", infer(
        "add_sub", *(tensor(name, "FP32", [1] * 4) for name in ("INPUT0", "INPUT1", "INPUT2")))),
    case("the optional input alone", infer("optional", tensor("EXTRA", "INT32", [1]))),
    case("three inputs of two", infer(
        "optional", *(tensor(name, "INT32", [1]) for name in ("NEEDED", "EXTRA", "MORE")))),
    case("a fixed dimension is wrong", infer("fixed", tensor("IN", "FP32", [1] * 6, [3, 2]))),
    case("a batch that is too large", infer("batched", tensor("IN", "FP32", [1] * 36, [9, 4]))),
    case("no batch dimension", infer("batched", tensor("IN", "FP32", [1] * 4))),
    case("an id in the message", infer("batched", tensor("IN", "FP32", [1] * 4), id="mine")),
    # Binary data.
    case("binary_data_size is a text", _changed(data=None, parameters={"binary_data_size": "8"})),
    case("binary_data_size is negative", _changed(data=None, parameters={"binary_data_size": -8})),
    case("binary_data_size beyond the body", _changed(data=None, parameters={"binary_data_size": 8})),
    case("something behind binary data", Http(
        "POST", "/v2/models/variable/infer", infer("variable", binary("IN", "INT32", [1, 2], [1, 2])).body + b"x",
        infer("variable", binary("IN", "INT32", [1, 2], [1, 2])).headers)),
    case("binary data of another size", infer("variable", binary("IN", "INT32", [1, 2, 3], [1, 2]))),
    case("binary data for too many elements in all", infer("variable", binary("IN", "INT32", [1], [2**62, 4]))),
    case("binary data for too many bytes in all", infer("variable", binary("IN", "INT32", [1], [2**61, 1]))),
    *(case(f"Inference-Header-Content-Length: {value}", _with(headers=(("Inference-Header-Content-Length", value),)))
      for value in ("x", "-1", "1", "1000000", "99999999999999999999", "2147483648", "")),
    case("BYTES: half a length", infer("strings", (binary("IN", "BYTES", [""])[0] | {
        "parameters": {"binary_data_size": 3}}, b"\0\0\0"))),
    case("BYTES: half an element", infer("strings", (binary("IN", "BYTES", [""])[0] | {
        "parameters": {"binary_data_size": 6}}, b"\5\0\0\0ab"))),
    case("BYTES: too few elements", infer("strings", binary("IN", "BYTES", ["a"], [2]))),
    case("BYTES: too many elements", infer("strings", binary("IN", "BYTES", ["a", "b"], [1]))),
    case("BYTES that are not UTF-8 in JSON", infer("strings", binary("IN", "BYTES", [b"\xff"]),
         outputs=[{"name": "OUT"}])),
    case("FP16 in JSON", document("every", {"inputs": [tensor("X_FP16", "FP16", [1.0])]})),
    # Models.
    case("an unknown model", _with(path="/v2/models/nobody/infer")),
    case("an unknown version", _with(path="/v2/models/variable/versions/7/infer")),
    case("a version that the policy leaves out", _with(path="/v2/models/versions/versions/2/infer")),
    case("a version that is a word", _with(path="/v2/models/variable/versions/x/infer")),
    case("version 0", _with(path="/v2/models/variable/versions/0/infer")),
    case("version -1", _with(path="/v2/models/variable/versions/-1/infer")),
    case("a model that did not load", _with(path="/v2/models/broken/infer")),
    case("a model that is not loaded", _with(path="/v2/models/later/infer")),
    case("a decoupled model", infer("repeat", tensor("COUNT", "INT32", [1]))),
    # Errors of models.
    *(case(f"error {code}", infer("failing", tensor("HOW", "BYTES", [code])))
      for code in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS",
                   "CANCELLED")),
    case("an exception of the model", infer("failing", tensor("HOW", "BYTES", ["model exception"]))),
    case("another exception", infer("failing", tensor("HOW", "BYTES", ["another exception"]))),
    case("a response without outputs", infer("failing", tensor("HOW", "BYTES", ["no outputs"]))),
    case("an output of another datatype", infer("failing", tensor("HOW", "BYTES", ["datatype"]))),
    case("an output of another name", infer("failing", tensor("HOW", "BYTES", ["name"]))),
    # Compression.
    case("gzip that is not", _with(headers=(("Content-Encoding", "gzip"),))),
    case("deflate that is not", _with(headers=(("Content-Encoding", "deflate"),))),
    case("gzip", compressed(_with(), "gzip")),
    case("deflate", compressed(_with(), "deflate")),
    case("an unknown compression", _with(headers=(("Content-Encoding", "br"),))),
    case("identity", _with(headers=(("Content-Encoding", "identity"),))),
    *(case(f"Accept-Encoding: {value}", _with(headers=(("Accept-Encoding", value),)))
      for value in ("gzip", "deflate", "gzip;q=0", "gzip;q=0.1, deflate;q=0.5", "*", "br", "identity")),
]  # fmt: skip

DIFFERENT = {
    reasons.JSON: (
        "no JSON", "half a document", "a list", "null", "something behind the document", "no inputs",
        "inputs are an object", "inputs are null", "an input is a number", "id is *", "parameters are a list",
        "parameters of an input are a list", "outputs are a number", "an output is a string",
        "an output without a name", "binary_data is a number", "binary_data_output is a number", "no name",
        "no datatype", "no shape", "name is a number", "datatype is a number", "shape is a number", "a * in the shape",
        "-* in the shape", "2^64 in the shape", "data is *", "a * for INT32", "null for INT32", "an object for INT32",
        "2^64 for INT32", "a number for BOOL", "a number for BYTES", "a text for FP32", "binary_data_size is *",
        "Inference-Header-Content-Length: 1",
    ),
    reasons.RANGE: ("2^31 for INT32", "256 for UINT8", "-1 for UINT8",),
    reasons.COUNT: ("too few data", "too many data", "data of a nesting of 50", "no dimensions",),
    reasons.EMPTY_BODY: ("an empty body",),
    reasons.DEPTH: ("data of a nesting of 150",),
    reasons.TWICE: ("an output twice*",),
    reasons.TOO_MANY: ("2^63 in the shape", "too many * in all", "binary data for too many * in all",),
    reasons.ORDER: ("one input is too many", "three inputs of two",),
    reasons.REQUIRED: ("the optional input alone",),
    reasons.HEADER_LENGTH: (
        "Inference-Header-Content-Length: x", "Inference-Header-Content-Length: 99999999999999999999",
        "Inference-Header-Content-Length: ",
    ),
    reasons.UTF8: ("BYTES that are not UTF-8 in JSON",),
    reasons.FP16: ("FP16 in JSON",),
    reasons.VERSIONS: ("version 0",),
    reasons.UNKNOWN_OUTPUT: ("an output of another name",),
    reasons.DAMAGED: ("gzip that is not", "deflate that is not",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
