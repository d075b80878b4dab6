# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes a ModelInferResponse by hand. (pure)

response := head id? parameters? (raw-contents)*      in fields of protobuf; their order is free
event    := infer_response                            a ModelStreamInferResponse

A model answers most requests with the same shapes, hence with the same head, which is remembered. The raw contents are
passed on without a copy. The sender of the parts releases the response afterwards.
"""

from __future__ import annotations

from pyruntime.runtime.frontends.grpc.schema import ModelInferResponse, ModelStreamInferResponse
from pyruntime.runtime.requests.types import InferResponse, OnGpu, OutputTensor, Parameter
from pyruntime.utils.errors import InferenceError

Parts = list[bytes | memoryview]

# The largest head that is remembered, and how many are: some 8 MiB at most, with their keys.
HEAD_KEPT_BYTES_MAX = 2048
HEADS_KEPT_MAX = 1024

# Tags of protobuf: field << 3 | 2 (bytes).
_ID = b"\x1a"
_RAW = b"\x32"
_INFER_RESPONSE = b"\x12"

UNSPEAKABLE = "a string is not valid Unicode, or an integer has more than 64 bits"

# The beginnings of raw contents, by size.
SIZES_KEPT_MAX = 1024

_heads: dict[tuple[object, ...], bytes] = {}
# Parameters as they are sent, by their text. Those of an ensemble's responses are mostly the same.
PARAMETERS_KEPT_MAX = 256
_encoded_parameters: dict[str, bytes] = {}
_raw_prefixes: dict[int, bytes] = {}


def encode_infer(response: InferResponse) -> Parts:
    """The parts of the message, in order. Contents must be bytes or views of bytes.

    Raises InferenceError (INTERNAL) for values that protobuf cannot express: invalid text, and numbers of more than 64
    bits.
    """
    try:
        return _encode(response)
    except (ValueError, TypeError):
        message = f"a response of model '{response.model_name}' cannot be expressed in gRPC: {UNSPEAKABLE}"
        raise InferenceError(message) from None


def _encode(response: InferResponse) -> Parts:
    outputs = response.outputs
    key: list[object] = [response.model_name, response.model_version]
    parts: Parts = [b""]
    if response.id:
        parts.append(encode_id(response.id))
    if response.parameters:
        parts.append(_parameters(response.parameters))
    for output in outputs:
        place = output.place
        # Names are strings and dimensions are numbers, so different responses have different keys.
        key += (output.name, output.datatype, place, *output.shape)
        if place is not None:  # clients expect one entry for each output
            parts.append(raw_prefix(0))
            continue
        data = output.data
        size = len(data)
        parts.append(_raw_prefixes.get(size) or raw_prefix(size))
        parts.append(data)
    known = tuple(key)
    head = _heads.get(known)
    if head is None:
        head = _head(response)
        if len(head) <= HEAD_KEPT_BYTES_MAX:
            if len(_heads) >= HEADS_KEPT_MAX:
                _heads.clear()
            _heads[known] = head
    parts[0] = head
    return parts


def encode_id(id: str) -> bytes:
    """The field of a response with the id of its request, which may stand anywhere in the message."""
    encoded = id.encode()
    return _ID + varint(len(encoded)) + encoded


def final_parameter(final: bool) -> bytes:
    """The parameter of every response in a stream: whether it is the last one to its request."""
    return _FINAL if final else _NOT_FINAL


def encode_event(parts: Parts) -> Parts:
    """A message of a stream, around the parts of a response."""
    size = 0
    for part in parts:
        size += len(part)
    return [_INFER_RESPONSE + varint(size), *parts]


def encode_error_event(message: str, model: str, version: str, id: str, final: bool | None) -> bytes:
    """The message of a stream for a failed request. The response in it names the request.

    `final` is None for a request that reached no model.
    """
    event = ModelStreamInferResponse(error_message=message.encode(errors="backslashreplace").decode())
    event.infer_response.model_name = model
    event.infer_response.model_version = version
    event.infer_response.id = id
    if final is not None:
        event.infer_response.parameters["triton_final_response"].bool_param = final
    serialized: bytes = event.SerializeToString()
    return serialized


def empty_final(model: str, version: int, id: str) -> Parts:
    """The empty response that ends the responses to a request, for clients that ask for it."""
    message = ModelInferResponse(model_name=model, model_version=str(version), id=id)
    return [message.SerializeToString(), _FINAL]


def raw_prefix(size: int) -> bytes:
    """The tag and the length before raw contents of `size` bytes."""
    prefix = _raw_prefixes.get(size)
    if prefix is None:
        if len(_raw_prefixes) >= SIZES_KEPT_MAX:
            _raw_prefixes.clear()
        prefix = _raw_prefixes[size] = _RAW + varint(size)
    return prefix


def varint(value: int) -> bytes:
    """A number of 0 and more as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _head(response: InferResponse) -> bytes:
    message = ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
    for output in response.outputs:
        _add_output(message, output)
    serialized: bytes = message.SerializeToString()
    return serialized


def _add_output(message: ModelInferResponse, output: OutputTensor) -> None:
    entry = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    place = output.place
    if place is not None:
        assert not isinstance(place, OnGpu)  # no client has access to that
        entry.parameters["shared_memory_region"].string_param = place.region
        entry.parameters["shared_memory_byte_size"].int64_param = place.byte_size
        if place.offset:
            entry.parameters["shared_memory_offset"].int64_param = place.offset


def _parameters(parameters: dict[str, Parameter]) -> bytes:
    key = repr(parameters)  # it tells True from 1 and 0.0 from -0.0, unlike a comparison
    known = _encoded_parameters.get(key)
    if known is None:
        known = _encode_parameters(parameters)
        if len(known) <= HEAD_KEPT_BYTES_MAX:
            if len(_encoded_parameters) >= PARAMETERS_KEPT_MAX:
                _encoded_parameters.clear()
            _encoded_parameters[key] = known
    return known


def _encode_parameters(parameters: dict[str, Parameter]) -> bytes:
    message = ModelInferResponse()
    for name, value in parameters.items():
        parameter = message.parameters[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value
    serialized: bytes = message.SerializeToString()
    return serialized


_FINAL = _parameters({"triton_final_response": True})
_NOT_FINAL = _parameters({"triton_final_response": False})
