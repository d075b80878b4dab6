# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes a ModelInferRequest. (pure)

It is the reference for what native code reads whole: see inference/plain_requests.py.

Native code splits the fields first (see native/_http2.pyi): the contents of tensors go to shared memory, those of typed
fields packed as raw ones, the id stands alone, and all other fields are the *key*, whose size native code limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from pyruntime.runtime.frontends.grpc.infer_parameters import read_classes, read_place, read_request_parameters
from pyruntime.runtime.frontends.grpc.schema import Message, ModelInferRequest
from pyruntime.runtime.frontends.http.kserve_request import DIMS_MAX
from pyruntime.runtime.repository.versions import parse_version
from pyruntime.runtime.requests.types import GpuPlace, InferRequest, InputTensor, OutputPlace
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.errors import Code, InferenceError

# The fields of typed contents by their numbers, from 1: their names, their types in Triton's messages, and the
# datatypes whose elements they hold. FP16 and BF16 have no typed contents.
_MEMBERS = (
    ("bool_contents", "BOOL", ("BOOL",)),
    ("int_contents", "INT32", ("INT8", "INT16", "INT32")),
    ("int64_contents", "INT64", ("INT64",)),
    ("uint_contents", "UINT32", ("UINT8", "UINT16", "UINT32")),
    ("uint64_contents", "UINT64", ("UINT64",)),
    ("fp32_contents", "FP32", ("FP32",)),
    ("fp64_contents", "FP64", ("FP64",)),
    ("bytes_contents", "BYTES", ("BYTES",)),
)

# See native/_http2.pyi.
Typed = tuple[tuple[int, int, int, int, int, int], ...]

_NO_CLASSES: Mapping[str, int] = {}


class ClientMemory(Protocol):
    """The shared memory of clients: see memory/clients.py."""

    def input(
        self, name: str, datatype: str, shape: list[int], region: str, offset: int, byte_size: int
    ) -> InputTensor: ...

    def output(self, region: str, offset: int, byte_size: int) -> OutputPlace | GpuPlace: ...


class TypedContents(NamedTuple):
    """The typed contents of one input, packed: `size` bytes at `offset` of the slot.

    `elements` is how many they are. Bit N - 1 of `members` says whether field N has elements; `fit` says whether the
    values of the one that belongs to the datatype are in its range.
    """

    offset: int
    size: int
    elements: int
    members: int
    fit: bool


@dataclass(slots=True)
class Target:
    """The model that a key names. `message` is the whole key, parsed, and `inputs` is the number of its inputs."""

    model: str
    version: int
    message: Message
    inputs: int


@dataclass(frozen=True, slots=True)
class InferOptions:
    """How the client wants its response: `classes` are the numbers of classes by output, in place of contents."""

    classes: Mapping[str, int] = field(default_factory=dict)
    empty_final_response: bool = False


# The options of nearly all requests.
PLAIN = InferOptions(_NO_CLASSES)


def read_target(key: bytes) -> Target:
    """The target in a key. Raises InferenceError: INTERNAL if it cannot be parsed, INVALID_ARG for a bad version."""
    try:
        message = ModelInferRequest.FromString(key)
    except DecodeError:
        raise InferenceError("the message is no ModelInferRequest: it cannot be parsed") from None
    return Target(message.model_name, parse_version(message.model_version), message, len(message.inputs))


def describe_typed(typed: Typed, fits: Sequence[bool]) -> Mapping[int, TypedContents]:
    """The typed contents of a message by the index of their input. `fits` is the result of `pack`."""
    described = {}
    end = 0
    for (_, _, size, index, elements, members), fit in zip(typed, fits, strict=True):
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        described[index] = TypedContents(offset, size, elements, members, fit)
        end = offset + size
    return described


def decode_infer(
    target: Target,
    id: str,
    places: Sequence[tuple[int, int]],
    typed: Mapping[int, TypedContents],
    view: memoryview,
    base: int,
    memory: ClientMemory,
) -> tuple[InferRequest, InferOptions]:
    """The request for a target, and the options of its response.

    `places` are the raw contents, (offset, length) each in bytes in `view`, which is at `base` in the model's request
    region. `typed` are the typed ones by the index of their input, in the same view. Raises InferenceError: INVALID_ARG
    for every mistake, and the errors of `memory` for unknown regions.
    """
    message = target.message
    request = InferRequest(target.model, target.version, id)
    empty_final = False
    if message.parameters:
        empty_final = read_request_parameters(request, message.parameters)
    raws = iter(places)
    for index, entry in enumerate(message.inputs):
        contents = typed.get(index) if typed else None
        tensor = _read_input(request, entry, contents, bool(places), raws, view, base, memory)
        request.inputs.append(tensor)
        if tensor.gpu is not None:
            request.uses_gpu = True
    classes = _read_outputs(request, message.outputs, memory) if message.outputs else _NO_CLASSES
    return request, InferOptions(classes, empty_final) if classes or empty_final else PLAIN


def _read_input(
    request: InferRequest,
    entry: Message,
    contents: TypedContents | None,
    raw: bool,
    raws: Iterator[tuple[int, int]],
    view: memoryview,
    base: int,
    memory: ClientMemory,
) -> InputTensor:
    name, datatype, shape, model = entry.name, entry.datatype, list(entry.shape), request.model_name
    _check_shape(request, name, shape)
    place = read_place(name, entry.parameters) if entry.parameters else None
    if place is not None:
        if contents is not None:
            raise _invalid(
                f"unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )
        return memory.input(name, datatype, shape, *place)
    if contents is not None:
        if raw:
            raise _invalid(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )
        _check_typed(model, name, datatype, contents)
        at, size = contents.offset, contents.size
        strings = contents.elements if datatype == "BYTES" else -1
        return InputTensor(name, datatype, shape, view[at : at + size], base + at, strings=strings)
    found = next(raws, None)
    if found is None:
        raise _invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
    at, size = found
    return InputTensor(name, datatype, shape, view[at : at + size], base + at)


def _check_shape(request: InferRequest, name: str, shape: list[int]) -> None:
    if len(shape) > DIMS_MAX:
        raise _invalid(f"'shape' of input '{name}' has {len(shape)} dimensions, expected at most {DIMS_MAX}")
    if shape and min(shape) < -1:
        raise _invalid(f"tensor '{name}' contains an invalid dimension [{','.join(map(str, shape))}]")
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
            request.place_output(entry.name, memory.output(*place))
        elif count:
            classes[entry.name] = count
    request.requested_outputs = names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise _duplicate_output(request, names)
    return classes


def _duplicate_output(request: InferRequest, names: list[str]) -> InferenceError:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            break
        seen.add(name)
    return request.failure(f"output '{name}' already exists in request", Code.INVALID_ARG)


def _check_typed(model: str, name: str, datatype: str, contents: TypedContents) -> None:
    for number, (member, kind, datatypes) in enumerate(_MEMBERS):
        if not contents.members >> number & 1:
            continue
        if datatype not in datatypes:
            raise _invalid(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{kind}', "
                f"expected datatype '{datatype}'"
            )
        if not contents.fit:
            raise _invalid(f"'{member}' of input '{name}' has values out of the range of {datatype}")


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)
