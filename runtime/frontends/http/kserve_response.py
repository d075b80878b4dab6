# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes the body of an HTTP inference response. (pure)

body     := document binary*
document := {"id"?, "model_name", "model_version", "parameters"?, "outputs": [output*]}
output   := {"name", "datatype", "shape", "parameters": {"binary_data_size"} | "data" | nothing}

The binary parts stand in the order of the outputs that have a "binary_data_size". They are never joined or copied,
and their sender releases the response afterwards. Of an output
in the client's own memory nothing else is said: the client knows where it is, and Triton's C++ client takes whatever is
in "parameters" for a size of binary data.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from pyruntime.runtime.frontends.http.json_pieces import ELEMENTS, check_elements
from pyruntime.runtime.frontends.http.json_tensors import unpack
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY, OutputOptions
from pyruntime.runtime.native.plain import write_document
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.errors import Code, InferenceError

# What clients read that end their side of the connection, and so cancel what has not begun.
CANCELLED = "the request was cancelled"


def encode_infer(response: InferResponse, options: OutputOptions) -> tuple[bytes, int, list[memoryview | bytes]]:
    """(document, its length in bytes or 0 where no binary data follows it, the binary parts in order).

    The second is the Inference-Header-Content-Length, to be sent unless it is 0. Contents must be bytes or views of
    bytes. Raises InferenceError: INVALID_ARG where an output that is not binary has no JSON form, INTERNAL where its
    contents do not fill its shape.
    """
    written = write_document(response, encode_parameters(response), options)
    document, parts = encode_any(response, options) if written is None else written
    return document, len(document) if parts else 0, parts


def encode_large(
    response: InferResponse, options: OutputOptions, is_stopped: Callable[[], bool]
) -> tuple[bytes, list[OutputTensor], list[memoryview | bytes]]:
    """(document for `json_pieces.pieces`, the outputs that are in it, the binary parts in order).

    Raises InferenceError as `encode_infer`. It returns sooner, with something, once `is_stopped`.
    """
    written: list[OutputTensor] = []

    def write(output: OutputTensor) -> object:
        check_elements(output, is_stopped)
        written.append(output)
        return ELEMENTS

    document, parts = encode_any(response, options, write)
    return document, written, parts


def encode_binary(response: InferResponse) -> tuple[bytes, list[memoryview | bytes], int]:
    """(document, the binary parts in order, the length of all of them in bytes), where all outputs are binary."""
    document, _, parts = encode_infer(response, ALL_BINARY)
    return document, parts, len(document) + sum(map(len, parts))


def encode_parameters(response: InferResponse) -> bytes:
    """The parameters of a response as JSON, or nothing."""
    return orjson.dumps(response.parameters) if response.parameters else b""


def encode_error(message: str) -> bytes:
    """The body of every answer that reports an error. It never fails itself, whatever is in `message`."""
    try:
        return orjson.dumps({"error": message})
    except TypeError:  # a lone surrogate, from a file name for instance
        return orjson.dumps({"error": message.encode(errors="backslashreplace").decode()})


def encode_failure(failure: InferenceError) -> bytes:
    """The body of the answer to a request that has failed. A cancelled one has no message, but somebody may read it."""
    is_silent = failure.code is Code.CANCELLED and not failure.message
    return encode_error(CANCELLED if is_silent else failure.message)


def encode_any(
    response: InferResponse, options: OutputOptions, write: Callable[[OutputTensor], object] = unpack
) -> tuple[bytes, list[memoryview | bytes]]:
    """(document, the binary parts in order): the reference of `write_document`. `write` gives the JSON of contents."""
    parts: list[memoryview | bytes] = []
    outputs: list[dict[str, object]] = []
    for output in response.outputs:
        if output.place is not None:
            outputs.append(_tensor_member(output))
        elif options.is_binary(output.name):
            parts.append(output.data)
            outputs.append(_binary_member(output))
        else:
            outputs.append(_tensor_member(output) | {"data": write(output)})
    members: dict[str, object] = {"id": response.id} if response.id else {}
    members |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.parameters:
        members["parameters"] = response.parameters
    members["outputs"] = outputs
    return orjson.dumps(members), parts


def _tensor_member(output: OutputTensor) -> dict[str, object]:
    return {"name": output.name, "datatype": output.datatype, "shape": output.shape}


def _binary_member(output: OutputTensor) -> dict[str, object]:
    return _tensor_member(output) | {"parameters": {"binary_data_size": len(output.data)}}
