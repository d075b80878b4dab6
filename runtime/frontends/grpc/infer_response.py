# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes a ModelInferResponse. (pure)

response := head id? parameter* (raw-contents)*      in fields of protobuf; their order is free
event    := infer_response                           a ModelStreamInferResponse

Native code writes plain responses, and the reference here all of them; what native code writes has the same bytes. The
raw contents are passed on without a copy. The sender of the parts releases the response afterwards.
"""

from __future__ import annotations

from pyruntime.runtime.frontends.grpc.schema import ModelInferResponse, ModelStreamInferResponse
from pyruntime.runtime.native.plain import write_message
from pyruntime.runtime.requests.types import InferResponse, OnGpu, OutputTensor, Parameter
from pyruntime.utils.errors import InferenceError

Parts = list[bytes | memoryview]

# Tags of protobuf: field << 3 | 2 (bytes).
_ID = b"\x1a"
_RAW = b"\x32"
_INFER_RESPONSE = b"\x12"

UNSPEAKABLE = "a string is not valid Unicode, or an integer has more than 64 bits"


def encode_infer(response: InferResponse) -> Parts:
    """The parts of the message, in order. Contents must be bytes or views of bytes.

    Raises InferenceError (INTERNAL) for values that protobuf cannot express: invalid text, and numbers of more than 64
    bits.
    """
    return write_message(response, None) or encode_any(response)


def encode_infer_event(response: InferResponse, final: bool) -> Parts:
    """The same for a message of a stream, which says whether it is the last response to its request."""
    return write_message(response, final) or _event([*encode_any(response), _final_parameter(final)])


def encode_any(response: InferResponse) -> Parts:
    """The reference of `encode_infer`. If the response has an id, that is the second part."""
    try:
        return _encode(response)
    except (ValueError, TypeError):
        message = f"a response of model '{response.model_name}' cannot be expressed in gRPC: {UNSPEAKABLE}"
        raise InferenceError(message) from None


def _encode(response: InferResponse) -> Parts:
    parts: Parts = [_head(response)]
    if response.id:
        parts.append(encode_id(response.id))
    parts += [_encode_parameter(name, value) for name, value in response.parameters.items()]
    for output in response.outputs:
        if output.place is not None:  # clients expect one entry for each output
            parts.append(_raw_prefix(0))
            continue
        parts.append(_raw_prefix(len(output.data)))
        parts.append(output.data)
    return parts


def encode_id(id: str) -> bytes:
    """The field of a response with the id of its request, which may stand anywhere in the message."""
    encoded = id.encode()
    return _ID + varint(len(encoded)) + encoded


def _final_parameter(final: bool) -> bytes:
    return _encode_parameter("triton_final_response", final)


def _event(parts: Parts) -> Parts:
    return [_INFER_RESPONSE + varint(sum(map(len, parts))), *parts]


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
    """The event of the empty response that ends the responses to a request, for clients that ask for it."""
    message = ModelInferResponse(model_name=model, model_version=str(version), id=id)
    return _event([message.SerializeToString(), _final_parameter(True)])


def _raw_prefix(size: int) -> bytes:
    """The tag and the length before raw contents of `size` bytes."""
    return _RAW + varint(size)


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


def _encode_parameter(name: str, value: Parameter) -> bytes:
    """One parameter: protobuf does not keep the order of several."""
    message = ModelInferResponse()
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
