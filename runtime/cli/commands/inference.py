# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of inference, as the protocol has them. (pure)"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyruntime.runtime.cli.commands.tensors import Array, TensorError, TensorSpec, decode, encode, to_array, to_json

LENGTH_HEADER = "Inference-Header-Content-Length"


class Response(NamedTuple):
    """What a model answered; `outputs` are in its order."""

    model: str
    version: str
    outputs: list[tuple[TensorSpec, Array]]

    def to_json(self) -> dict[str, Any]:
        """For machines: as the protocol's own JSON, with nested data."""
        outputs = [
            {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape), "data": to_json(array)}
            for spec, array in self.outputs
        ]
        return {"model_name": self.model, "model_version": self.version, "outputs": outputs}


def encode_request(
    arrays: Mapping[str, Array], specs: Mapping[str, TensorSpec], outputs: Sequence[str]
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request; all tensors are binary, because only so all datatypes can travel."""
    inputs, contents = [], []
    for name, array in arrays.items():
        datatype = specs[name].datatype
        data = encode(datatype, array)
        parameters = {"binary_data_size": len(data)}
        inputs.append({"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": parameters})
        contents.append(data)
    document: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    if outputs:
        document["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps(document).encode()
    return b"".join([head, *contents]), {LENGTH_HEADER: str(len(head))}


def decode_response(headers: Mapping[str, str], body: bytes) -> Response:
    """What a response says; `headers` have names in small letters.

    Raises ValueError (of which TensorError is one), KeyError or TypeError for what is none.
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
    return Response(document["model_name"], document["model_version"], outputs)


def encode_generate(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The document of a generate request. Raises TensorError for what JSON cannot say."""
    document = {}
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
