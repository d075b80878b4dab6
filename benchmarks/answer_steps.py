# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of compare_answers, and the steps that they consist of. (pure)

A case is one or several steps that both servers are sent in order: requests, and looks at shared memory. Its answer is
the list of the answers to its steps.
"""

import fnmatch
import gzip
import json
import zlib
from dataclasses import dataclass, replace

import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2

NUMPY = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
# The field of typed contents for each datatype that has one.
TYPED = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@dataclass(frozen=True)
class Http:
    """A request over HTTP. Its Content-Length is added unless `headers` have it, or a Transfer-Encoding."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Raw:
    """All bytes that a client sends over one connection for HTTP."""

    data: bytes


@dataclass(frozen=True)
class Grpc:
    """A call of one request and one response."""

    method: str
    message: object
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stream:
    """A call of ModelStreamInfer."""

    messages: tuple[object, ...]
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Memory:
    """Shared memory of POSIX: written if there are `contents`, then read, which is the answer."""

    key: str
    contents: bytes | None = None
    size: int = 0


@dataclass(frozen=True)
class Settled:
    """A request that is repeated until its answer is the same twice: servers count after they have answered."""

    step: object


@dataclass(frozen=True)
class Case:
    """`different` is "" where both servers must give the same answer.

    Else it is a part of docs/explanation/differences.md that says how they differ.
    """

    name: str
    steps: tuple[object, ...]
    different: str = ""


def case(name, *steps):
    return Case(name, steps)


def explain(cases, reasons):
    """The cases, those with differences on purpose under their reasons: {reason: patterns of names}.

    Raises ValueError for a pattern without a case, and for a case with two reasons.
    """
    explained = {each.name: each for each in cases}
    for reason, patterns in reasons.items():
        for pattern in patterns:
            names = [name for name in explained if fnmatch.fnmatchcase(name, pattern) or name == pattern]
            if not names or any(explained[name].different for name in names):
                raise ValueError(f"{pattern!r} means no case, or one that is explained already")
            explained |= {name: replace(explained[name], different=reason) for name in names}
    return list(explained.values())


def contents(datatype, values):
    """The bytes of a tensor."""
    if datatype == "BYTES":
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        return b"".join(len(each).to_bytes(4, "little") + each for each in encoded)
    return np.array(values, NUMPY[datatype]).tobytes()


# Documents over HTTP.


def tensor(name, datatype, data, shape=None, **more):
    """An input with its contents in JSON."""
    return {"name": name, "datatype": datatype, "shape": [len(data)] if shape is None else shape, "data": data, **more}


def binary(name, datatype, data, shape=None):
    """An input with its contents behind the document, and these contents."""
    raw = contents(datatype, data)
    shape = [len(data)] if shape is None else shape
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}, raw


def document(model, body, *headers, verb="infer"):
    """A request for a model, whose body is bytes, or anything that JSON can hold."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http("POST", f"/v2/models/{model}/{verb}", raw, headers)


def infer(model, *inputs, **members):
    """An inference whose inputs are `tensor` or `binary`; `members` are those of the document."""
    entries = [each[0] if isinstance(each, tuple) else each for each in inputs]
    raw = b"".join(each[1] for each in inputs if isinstance(each, tuple))
    text = json.dumps({"inputs": entries, **members}).encode()
    headers = (("Inference-Header-Content-Length", str(len(text))),) if raw else ()
    return Http("POST", f"/v2/models/{model}/infer", text + raw, headers)


def generate(model, body, *headers):
    return document(model, body, *headers, verb="generate")


def generate_stream(model, body, *headers):
    return document(model, body, *headers, verb="generate_stream")


def get(path, *headers):
    return Http("GET", path, b"", headers)


def post(path, body=None, *headers):
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http("POST", path, raw, headers)


def compressed(request, encoding):
    """The request with a compressed body."""
    body = gzip.compress(request.body) if encoding == "gzip" else zlib.compress(request.body)
    return Http(request.method, request.path, body, (*request.headers, ("Content-Encoding", encoding)))


# Messages of gRPC.


def raw_input(name, datatype, values, shape=None):
    """An input with raw contents: (the entry, its contents)."""
    shape = [len(values)] if shape is None else shape
    entry = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    return entry, values if isinstance(values, bytes) else contents(datatype, values)


def typed_input(name, datatype, values, shape=None, field=None):
    """An input with typed contents."""
    shape = [len(values)] if shape is None else shape
    entry = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    field = field or TYPED[datatype]
    if field == "bytes_contents":
        values = [value.encode() if isinstance(value, str) else value for value in values]
    getattr(entry.contents, field).extend(values)
    return entry


def infer_message(model, *inputs, outputs=(), parameters=None, **fields):
    """A ModelInferRequest. `outputs` are names, or pairs of a name and parameters."""
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    for each in inputs:
        entry, raw = each if isinstance(each, tuple) else (each, None)
        message.inputs.append(entry)
        if raw is not None:
            message.raw_input_contents.append(raw)
    for each in outputs:
        name, options = (each, {}) if isinstance(each, str) else each
        set_parameters(message.outputs.add(name=name).parameters, options)
    set_parameters(message.parameters, parameters or {})
    return message


def set_parameters(entries, values):
    """Set parameters by the types of their values; a pair names the field."""
    for name, value in values.items():
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        field, value = value if isinstance(value, tuple) else (kinds[type(value)], value)
        setattr(entries[name], field, value)


def call_infer(model, *inputs, metadata=(), **more):
    return Grpc("ModelInfer", infer_message(model, *inputs, **more), metadata)


def call(method, metadata=(), **fields):
    """A call of any other method."""
    return Grpc(method, getattr(service_pb2, f"{method}Request")(**fields), metadata)


PARAMETER = service_pb2.ModelRepositoryParameter
SETTING = service_pb2.TraceSettingRequest.SettingValue
LOG_SETTING = service_pb2.LogSettingsRequest.SettingValue
CONFIG = model_config_pb2.ModelConfig
