# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Describes one version of one model: schemas of its requests and responses, and its operations. (pure)

The schemas of a version are components; the operations refer to them, those of the version and, if it is the latest
one, those of the model as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.frontends.http.openapi import tensors
from pyruntime.runtime.frontends.http.openapi.operations import (
    BINARY,
    BYTES,
    EVENTS,
    JSON,
    Operation,
    answer,
    body,
    content,
    operation,
    parameter,
    ref,
)
from pyruntime.runtime.frontends.http.openapi.tensors import Schema

_API = "inference"
# Models choose their error codes, so any status is possible.
_ERRORS = (400, 404, 500, 501, 503, 504)
_BINARY_HEADER = {
    "Inference-Header-Content-Length": {
        "description": "How many bytes of the body are JSON; the binary contents of outputs follow, in their order.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
# The model gets lists and objects as JSON text.
_GENERATE_PARAMETER: Schema = {"anyOf": [ref("Parameter"), {"type": "array", "items": {}}, {"type": "object"}]}


def component_name(text: str) -> str:
    """A name that components may have, another one for every text."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E").replace("%", ".")


def model_schemas(spec: ModelSpec, version: int) -> dict[str, Schema]:
    """The components of a version. A decoupled one has no inference that is one request and one response."""
    key = _key(spec, version)
    made = {
        f"GenerateRequest-{key}": _generate_request(spec),
        f"GenerateResponse-{key}": _generate_response(spec),
    }
    if not spec.decoupled:
        made |= {f"InferRequest-{key}": _infer_request(spec), f"InferResponse-{key}": _infer_response(spec)}
    return made


def model_paths(spec: ModelSpec, version: int, is_latest: bool) -> Iterator[tuple[str, dict[str, Operation]]]:
    """(path, what is there) of a version, and of the model if requests to it go to this version."""
    path = f"/v2/models/{quote(spec.name, safe='')}"
    name, key = component_name(spec.name), _key(spec, version)
    yield from _paths(spec, f"{path}/versions/{version}", f"{spec.name}, version {version}", key, key)
    if is_latest:
        yield from _paths(spec, path, spec.name, name, key)


def _paths(spec: ModelSpec, path: str, title: str, name: str, key: str) -> Iterator[tuple[str, dict[str, Operation]]]:
    if not spec.decoupled:
        yield f"{path}/infer", {"post": _infer(spec, title, name, key)}
    request, response = body(content(ref(f"GenerateRequest-{key}"))), ref(f"GenerateResponse-{key}")
    success = answer("The one response of the model.", content(response))
    summary = f"Have {title} executed, in plain JSON, with exactly one response"
    yield f"{path}/generate", {"post": operation(_API, f"generate.{name}", summary, success, _ERRORS, request=request)}
    events = content(_event({"anyOf": [response, ref("Error")]}), EVENTS)
    success = answer("An event for each response of the model: what each of them is stands in the schema.", events)
    summary = f"Have {title} executed, in plain JSON, with any number of responses"
    # Generators turn the dot into what may be in a name, too: `generate.stream_x` must not be the stream of `x`.
    stream = operation(_API, f"stream_generate.{name}", summary, success, request=request)
    for status in _ERRORS:
        # The model's first response decides, and others may follow it.
        stream["responses"][str(status)] = answer(
            "The request is refused, or the model's first response is an error.", content(ref("Error")) | events
        )
    yield f"{path}/generate_stream", {"post": stream}


def _event(document: Schema) -> Schema:
    """A stream of events: text for clients that do not read events, as generators make them; else one event of it."""
    data: Schema = {"type": "string", "contentMediaType": JSON, "contentSchema": document}
    return {"anyOf": [{"type": "string"}, _object({"data": data}, ("data",))]}


def _infer(spec: ModelSpec, title: str, name: str, key: str) -> Operation:
    request = body(content(ref(f"InferRequest-{key}")) | content(BYTES, BINARY))
    example = _example(spec)
    if example is not None:
        request["content"][JSON]["example"] = example
    success = answer("The outputs.", content(ref(f"InferResponse-{key}")) | content(BYTES, BINARY))
    success["headers"] = _BINARY_HEADER
    summary, parameters = f"Have {title} executed", [parameter("HeaderLength")]
    return operation(_API, f"infer.{name}", summary, success, _ERRORS, parameters=parameters, request=request)


def _infer_request(spec: ModelSpec) -> Schema:
    inputs = spec.inputs.values()
    members: Schema = {
        "type": "array",
        "items": {"anyOf": [_input(tensor, spec.max_batch_size) for tensor in inputs]} if spec.inputs else {},
        "minItems": len(spec.required_inputs),
        "maxItems": len(spec.inputs),
    }
    required = [tensor.name for tensor in inputs if tensor.name in spec.required_inputs]
    if required:
        members["allOf"] = [
            {"contains": {"properties": {"name": {"const": name}}, "required": ["name"]}} for name in required
        ]
    return _object(
        {"id": {"type": "string"}, "parameters": ref("Parameters"), "inputs": members, "outputs": _wanted(spec)},
        ("inputs",),
    )


def _input(tensor: TensorSpec, max_batch_size: int) -> Schema:
    members = _tensor(tensor, max_batch_size)
    required = ["name", "datatype", "shape"]
    if tensors.has_json(tensor):
        members["data"] = tensors.contents(tensor) | {"description": "Or else `parameters` say where the contents are."}
    members["parameters"] = ref("InputParameters")
    choices = [{"required": ["parameters"]}]
    if tensors.has_json(tensor):
        choices.insert(0, {"required": ["data"]})
    return _object(members, required) | {"title": tensor.name, "anyOf": choices}


def _wanted(spec: ModelSpec) -> Schema:
    if not spec.outputs:
        return {"type": "array", "items": {}, "maxItems": 0}
    item = _object({"name": {"enum": list(spec.outputs)}, "parameters": ref("OutputParameters")}, ("name",))
    description = "The outputs that are wanted, each once; all of them where there is no list or an empty one."
    return {"type": "array", "items": item, "maxItems": len(spec.outputs), "description": description}


def _infer_response(spec: ModelSpec) -> Schema:
    items = [_output(tensor, spec.max_batch_size) for tensor in spec.outputs.values()]
    outputs = {"type": "array", "items": {"anyOf": [*items, ref("ClassifiedOutput")]}, "maxItems": len(items)}
    members: dict[str, Schema] = {
        "id": {"type": "string"},
        **_identity(spec),
        "parameters": ref("Parameters"),
        "outputs": outputs,
    }
    return _object(members, ("model_name", "model_version", "outputs"))


def _output(tensor: TensorSpec, max_batch_size: int) -> Schema:
    members = _tensor(tensor, max_batch_size)
    if tensors.has_json(tensor):
        members["data"] = tensors.flat(tensor)
    members["parameters"] = ref("OutputPlace")
    return _object(members, ("name", "datatype", "shape")) | {"title": tensor.name}


def _tensor(tensor: TensorSpec, max_batch_size: int) -> dict[str, Schema]:
    return {
        "name": {"const": tensor.name},
        "datatype": {"const": tensor.datatype},
        "shape": tensors.shape(tensor, max_batch_size),
    }


def _generate_request(spec: ModelSpec) -> Schema:
    readable = _readable(spec.inputs.values())
    members = {tensor.name: tensors.value(tensor) for tensor in readable}
    members |= {"id": {"type": "string"}, "parameters": {"type": "object", "additionalProperties": _GENERATE_PARAMETER}}
    required = [tensor.name for tensor in readable if tensor.name in spec.required_inputs]
    return _object(members, required) | {"additionalProperties": _GENERATE_PARAMETER}


def _generate_response(spec: ModelSpec) -> Schema:
    members: dict[str, Schema] = {"id": {"type": "string"}, **_identity(spec)}
    members |= {tensor.name: tensors.bare_value(tensor) for tensor in _readable(spec.outputs.values())}
    return _object(members, ("model_name", "model_version")) | {"additionalProperties": ref("Parameter")}


def _readable(of: Iterable[TensorSpec]) -> list[TensorSpec]:
    return [tensor for tensor in of if tensors.has_json(tensor)]


def _identity(spec: ModelSpec) -> dict[str, Schema]:
    return {"model_name": {"const": spec.name}, "model_version": {"type": "string"}}


def _example(spec: ModelSpec) -> Schema | None:
    inputs = []
    for tensor in spec.inputs.values():
        if tensor.name not in spec.required_inputs:
            continue
        data = tensors.example_data(tensor)
        if data is None:
            return None
        shape = tensors.example_shape(tensor)
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data})
    return {"inputs": inputs}


def _object(properties: dict[str, Schema], required: Iterable[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _key(spec: ModelSpec, version: int) -> str:
    return f"{component_name(spec.name)}-{version}"
