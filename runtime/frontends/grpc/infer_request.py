# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes a ModelInferRequest. (pure)

Native code splits its top-level fields first (see native/_http2.pyi): the raw contents of tensors go to shared memory
unparsed, the id stands alone, and all other fields are the *key*. Requests that differ only in contents and id have the
same key, so parsed keys are remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import error as StructError
from struct import pack
from typing import Protocol

from google.protobuf.message import DecodeError

from pyruntime.runtime.frontends.grpc.infer_parameters import read_classes, read_place, read_request_parameters
from pyruntime.runtime.frontends.grpc.schema import Message, ModelInferRequest
from pyruntime.runtime.frontends.http.kserve_request import DIMS_MAX, TENSORS_MAX
from pyruntime.runtime.repository.versions import parse_version
from pyruntime.runtime.requests.types import InferRequest, InputTensor, OutputPlace
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError

# The largest key that is remembered, and how many are: some 12 MiB at worst, once parsed.
KEY_KEPT_BYTES_MAX = 2048
KEYS_KEPT_MAX = 256

# The fields of typed contents, their datatypes in Triton's messages, and the struct codes of elements by datatype.
_CONTENTS = (
    ("bool_contents", "BOOL", {"BOOL": "?"}),
    ("int_contents", "INT32", {"INT8": "b", "INT16": "h", "INT32": "i"}),
    ("int64_contents", "INT64", {"INT64": "q"}),
    ("uint_contents", "UINT32", {"UINT8": "B", "UINT16": "H", "UINT32": "I"}),
    ("uint64_contents", "UINT64", {"UINT64": "Q"}),
    ("fp32_contents", "FP32", {"FP32": "f"}),
    ("fp64_contents", "FP64", {"FP64": "d"}),
    ("bytes_contents", "BYTES", {"BYTES": ""}),
)

_NO_CLASSES: Mapping[str, int] = {}


class ClientMemory(Protocol):
    """The shared memory of clients: see memory/clients.py."""

    def input(
        self, name: str, datatype: str, shape: list[int], region: str, offset: int, byte_size: int
    ) -> InputTensor: ...

    def output(self, region: str, offset: int, byte_size: int) -> OutputPlace: ...


@dataclass(slots=True)
class Target:
    """The model that a key names. `message` is the whole key, parsed."""

    model: str
    version: int
    message: Message


@dataclass(frozen=True, slots=True)
class InferOptions:
    """How the client wants its response: `classes` are the numbers of classes by output, in place of contents."""

    classes: Mapping[str, int] = field(default_factory=dict)
    empty_final_response: bool = False


# The options of nearly all requests.
PLAIN = InferOptions(_NO_CLASSES)

_targets: dict[bytes, Target] = {}


def read_target(key: bytes) -> Target:
    """The target in a key. Raises InferenceError: INTERNAL if it cannot be parsed, INVALID_ARG for a bad version."""
    target = _targets.get(key)
    if target is None:
        try:
            message = ModelInferRequest.FromString(key)
        except DecodeError:
            raise InferenceError("the message is no ModelInferRequest: it cannot be parsed") from None
        target = Target(message.model_name, parse_version(message.model_version), message)
        if len(key) <= KEY_KEPT_BYTES_MAX:
            if len(_targets) >= KEYS_KEPT_MAX:
                _targets.clear()
            _targets[key] = target
    return target


def decode_infer(
    target: Target,
    id: str,
    places: Sequence[tuple[int, int]],
    view: memoryview,
    base: int,
    memory: ClientMemory,
) -> tuple[InferRequest, InferOptions]:
    """The request for a target, and the options of its response.

    `places` are the raw contents, (offset, length) each in bytes in `view`, which is at `base` in the model's request
    region. Typed contents are packed here, and have offset -1. Raises InferenceError: INVALID_ARG for every mistake,
    and the errors of `memory` for unknown regions.
    """
    message = target.message
    request = InferRequest(target.model, target.version, id)
    empty_final = False
    if message.parameters:
        empty_final = read_request_parameters(request, message.parameters)
    _check_count(message.inputs, "inputs")
    _check_count(message.outputs, "outputs")
    raws = iter(places)
    for entry in message.inputs:
        request.inputs.append(_read_input(request, entry, bool(places), raws, view, base, memory))
    classes = _read_outputs(request, message.outputs, memory) if message.outputs else _NO_CLASSES
    return request, InferOptions(classes, empty_final) if classes or empty_final else PLAIN


def _read_input(
    request: InferRequest,
    entry: Message,
    raw: bool,
    raws: Iterator[tuple[int, int]],
    view: memoryview,
    base: int,
    memory: ClientMemory,
) -> InputTensor:
    name, datatype, shape, model = entry.name, entry.datatype, list(entry.shape), request.model_name
    _check_shape(request, name, shape)
    place = read_place(name, entry.parameters) if entry.parameters else None
    has_contents = entry.HasField("contents")
    if place is not None:
        if has_contents:
            raise _invalid(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )
        return memory.input(name, datatype, shape, *place)
    if has_contents:
        if raw:
            raise _invalid(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )
        return InputTensor(name, datatype, shape, _pack(model, name, datatype, entry.contents))
    found = next(raws, None)
    if found is None:
        raise _invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
    at, size = found
    return InputTensor(name, datatype, shape, view[at : at + size], base + at)


def _check_shape(request: InferRequest, name: str, shape: list[int]) -> None:
    if len(shape) > DIMS_MAX:
        raise _invalid(f"'shape' of input '{name}' has {len(shape)} dimensions, expected at most {DIMS_MAX}")
    if shape and min(shape) < 0:
        raise request.failure(
            f"All input dimensions should be specified for input '{name}' for model '{request.model_name}', got "
            f"[{','.join(map(str, shape))}]",
            Code.INVALID_ARG,
        )


def _read_outputs(request: InferRequest, entries: Sequence[Message], memory: ClientMemory) -> Mapping[str, int]:
    """Note the requested outputs and their places. Returns the numbers of classes by output."""
    classes: dict[str, int] = {}
    for entry in entries:
        if not entry.parameters:
            continue
        count = read_classes(entry.parameters)
        place = read_place(entry.name, entry.parameters)
        if place is not None:
            if count:
                raise _invalid("output can't set both 'shared_memory_region' and 'classification'")
            request.output_places[entry.name] = memory.output(*place)
        elif count:
            classes[entry.name] = count
    # An output that is requested twice is sent once.
    request.requested_outputs = list(dict.fromkeys(entry.name for entry in entries))
    return classes


def _pack(model: str, name: str, datatype: str, contents: Message) -> bytes:
    """Pack typed contents as raw ones. FP16 and BF16 have no typed contents."""
    packed = b""
    for member, kind, codes in _CONTENTS:
        values = getattr(contents, member)
        if not values:
            continue
        if datatype not in codes:
            raise _invalid(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{kind}', "
                f"expected datatype '{datatype}'"
            )
        try:
            packed = pack(f"<{len(values)}{codes[datatype]}", *values) if codes[datatype] else _pack_bytes(values)
        except StructError:
            raise _invalid(f"'{member}' of input '{name}' has values out of the range of {datatype}") from None
    return packed


def _pack_bytes(values: Sequence[bytes]) -> bytes:
    return b"".join([len(value).to_bytes(BYTES_PREFIX_SIZE, "little") + value for value in values])


def _check_count(entries: Sequence[Message], what: str) -> None:
    if len(entries) > TENSORS_MAX:
        raise _invalid(f"the request has {len(entries)} {what}, expected at most {TENSORS_MAX}")


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)
