# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes inference requests and decodes responses, as HTTP bodies of the protocol. (pure)"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pyruntime.runtime.cli.commands.tensors import Array, TensorError, TensorSpec, decode, encode, to_array, to_json
from pyruntime.runtime.json_types import JsonObject, JsonValue

LENGTH_HEADER = "Inference-Header-Content-Length"


class Response(NamedTuple):
    """The response of a model; `outputs` have the model's order."""

    model: str
    version: str
    outputs: list[tuple[TensorSpec, Array]]
    parameters: Mapping[str, JsonValue] = MappingProxyType({})

    def to_json(self) -> JsonObject:
        """The response in the protocol's JSON, with nested lists as data."""
        outputs: list[JsonValue] = [
            {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape), "data": to_json(array)}
            for spec, array in self.outputs
        ]
        return {"model_name": self.model, "model_version": self.version, "outputs": outputs}


def encode_request(
    arrays: Mapping[str, Array],
    specs: Mapping[str, TensorSpec],
    outputs: Sequence[str],
    parameters: Mapping[str, JsonValue] = MappingProxyType({}),
) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a request. All tensors are binary, because JSON cannot express all datatypes."""
    inputs, contents = [], []
    for name, array in arrays.items():
        datatype = specs[name].datatype
        data = encode(datatype, array)
        size = {"binary_data_size": len(data)}
        inputs.append({"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": size})
        contents.append(data)
    document: dict[str, object] = {"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}
    if outputs:
        document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps(document).encode()
    return b"".join([head, *contents]), {LENGTH_HEADER: str(len(head))}


def decode_response(headers: Mapping[str, str], body: bytes) -> Response:
    """Decode a response; `headers` have lower-case names.

    Raises ValueError (or its subclass TensorError), KeyError or TypeError for an invalid response.
    """
    length = int(headers.get(LENGTH_HEADER.lower()) or len(body))
    document = json.loads(body[:length])
    if not isinstance(document, dict):
        raise TypeError("it is no object")
    outputs = []
    for output in document.get("outputs", []):
        spec = TensorSpec.parse(output)
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = to_array(spec, output["data"])
        elif size > len(body) - length:
            raise TensorError("it ends within a tensor")
        else:
            array = decode(spec, body[length : length + size])
            length += size
        outputs.append((spec, array))
    return Response(document["model_name"], document["model_version"], outputs, document.get("parameters", {}))


def encode_generate(arrays: Mapping[str, Array]) -> JsonObject:
    """The document of a generate request. Raises TensorError for elements that JSON cannot express."""
    document: JsonObject = {}
    for name, array in arrays.items():
        if any(isinstance(each, bytes) and not _is_text(each) for each in array.ravel().tolist()):
            raise TensorError(f"input '{name}' is no UTF-8, and streams are of JSON")
        document[name] = to_json(array)
    return document


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
