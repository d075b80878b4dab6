# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes the body of an HTTP inference request. (pure)

body     := document binary*      the document is as long as Inference-Header-Content-Length says, or all of the body
         |  contents              where that header is 0: the contents of the model's only input
document := {"id"?, "parameters"?, "inputs": [input*], "outputs"?: [output*]}
input    := {"name", "shape", "datatype", "data" | "parameters": {"binary_data_size"} | "parameters": place}
output   := {"name", "parameters"?: {"binary_data"?, "classification"?} | place}
place    := {"shared_memory_region", "shared_memory_offset"?, "shared_memory_byte_size"}

The binary parts stand in the order of the inputs that have a "binary_data_size"; they become views of the body and are
never copied. Unknown members are ignored, as in Triton. Whether the inputs suit the model is checked later, in the
same way for every protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.json_document import (
    invalid,
    json_name,
    parse_document,
    refuse_ambiguous,
    shown,
)
from pyruntime.runtime.frontends.common.request_parameters import read_id, read_parameters
from pyruntime.runtime.frontends.http.json_tensors import PackedElements, pack
from pyruntime.runtime.frontends.http.raw_request import decode_raw
from pyruntime.runtime.json_types import JsonObject
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import Code, InferenceError

# The members of a document that no document may have twice.
MEMBERS = ("id", "inputs", "outputs", "parameters")
# The most inputs, or outputs, of one request. Large models have hundreds.
TENSORS_MAX = 4096

# numpy 1 has no arrays of more dimensions, and the model may run under it.
DIMS_MAX = 32

# Triton keeps dimensions in signed 64-bit integers.
DIM_MAX = 2**63 - 1

_NOTHING: JsonObject = {}

# An element of "inputs" or "outputs". It may be no object: then reading a member raises TypeError.
Entry: TypeAlias = Any

# The default: no registered memory.
NO_CLIENT_MEMORY = ClientMemory(allowed=False)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How the client wants its outputs: `binary` for some of them by name, `default_binary` for all others.

    `classes` says of how many classes it wants to know in place of an output's contents, by name.
    """

    default_binary: bool
    binary: dict[str, bool] | None = None
    classes: Mapping[str, int] = field(default_factory=dict)

    def is_binary(self, name: str) -> bool:
        """Whether the contents of output `name` follow the JSON document as binary data."""
        if self.binary is None:
            return self.default_binary
        return self.binary.get(name, self.default_binary)


# Nearly every request has one of these options, so they are made once.
ALL_BINARY = OutputOptions(default_binary=True)
ALL_JSON = OutputOptions(default_binary=False)


def output_options(binary: bool | dict[str, bool]) -> OutputOptions:
    """The options of outputs that are all binary or all not, or each as a dict says by its name."""
    if binary is True:
        return ALL_BINARY
    return ALL_JSON if binary is False else OutputOptions(default_binary=False, binary=binary)


def decode_infer(
    body: memoryview,
    header_length: int | None,
    spec: ModelSpec,
    memory: ClientMemory = NO_CLIENT_MEMORY,
    *,
    base: int = -1,
    document: Mapping[str, object] | None = None,
) -> tuple[InferRequest, OutputOptions]:
    """The request in `body`, a view of bytes, for the model of `spec`; and how its outputs are to be sent.

    `header_length` is the Inference-Header-Content-Length in bytes, None where the client sent none. `base` is where
    the body starts in the model's request region, in bytes; inputs whose contents lie in the body then have an offset
    in the region. Contents that are made here, from JSON, have offset -1, and so has everything where `base` is -1.
    `memory` knows the regions that clients have registered. `document` is there if it is parsed already. Raises
    InferenceError: INVALID_ARG for every mistake, and what `memory` raises.
    """
    if header_length is None:
        header_length = len(body)
        document = _parse(bytes(body)) if document is None else document
    elif header_length == 0:
        return decode_raw(body, spec, base), ALL_BINARY
    elif 0 < header_length <= len(body):
        document = _parse(bytes(body[:header_length])) if document is None else document
    else:
        raise invalid(f"inference header size should be in range (0, {len(body)}), got: {header_length}")

    request = InferRequest(spec.name)
    if "id" in document:
        request.id = read_id(document["id"])
    binary = "parameters" in document and read_parameters(request, document["parameters"])
    if "inputs" not in document:
        raise invalid("the request has no 'inputs'")
    end = _read_inputs(request, _entries(document["inputs"], "inputs"), body, header_length, base, memory)
    if end != len(body):
        raise invalid(f"unexpected additional input data for model '{spec.name}'")

    options = ALL_BINARY if binary else ALL_JSON
    if "outputs" in document:
        classes: dict[str, int] = {}
        entries = _entries(document["outputs"], "outputs")
        flags = _read_outputs(request, entries, binary, classes, memory)
        # An empty list asks for all outputs, as none at all does.
        if flags:
            request.requested_outputs = list(flags)
            options = _options(flags, classes)
    return request, options


def _entries(value: object, member: str) -> list[Entry]:
    if type(value) is not list:
        raise invalid(f"'{member}' must be a list, got {json_name(value)}")
    if len(value) > TENSORS_MAX:
        raise invalid(f"the request has {len(value)} {member}, expected at most {TENSORS_MAX}")
    return value


def _parse(text: bytes) -> JsonObject:
    document = parse_document(text)
    refuse_ambiguous(text, MEMBERS)
    return document


def _read_inputs(
    request: InferRequest, entries: list[Entry], body: memoryview, position: int, base: int, memory: ClientMemory
) -> int:
    """Append an input for each of `entries` and return where the binary data, from `position` on, ends.

    The checks are inline because the loop runs for every request. The functions further down make their messages.
    """
    inputs = request.inputs
    seen: set[str] = set()
    for entry in entries:
        try:
            name, shape, datatype = entry["name"], entry["shape"], entry["datatype"]
        except (KeyError, TypeError):
            raise _incomplete(entry, "input", ("name", "shape", "datatype")) from None
        if type(name) is not str or name in seen:
            raise _bad_name(request, name, "input")
        seen.add(name)
        if type(datatype) is not str or datatype not in BY_NAME:
            raise _bad_datatype(name, datatype)
        if type(shape) is not list or len(shape) > DIMS_MAX:
            raise _bad_shape(name, shape)
        for dim in shape:
            # Shifted by 63, only integers from 0 to DIM_MAX leave nothing.
            if type(dim) is not int or dim >> 63:
                raise _bad_shape(name, shape)
        parameters = entry.get("parameters") or _NOTHING
        if type(parameters) is not dict:
            raise _bad_parameters(name, "input", parameters)
        is_json = "data" in entry
        if "shared_memory_region" in parameters or is_json is ("binary_data_size" in parameters):
            if is_json or "binary_data_size" in parameters or "shared_memory_region" not in parameters:
                raise _unreadable(entry, parameters)
            place = _read_place(f"input '{name}'", parameters)
            inputs.append(tensor := memory.input(name, datatype, shape, *place))
            if tensor.gpu is not None:
                request.uses_gpu = True
            continue
        if is_json:
            data = entry["data"]
            offset = data.offset if type(data) is PackedElements else -1
            inputs.append(tensor := InputTensor(name, datatype, shape, pack(name, datatype, shape, data), offset))
            if datatype == "BYTES":
                tensor.strings = math.prod(shape)
            continue
        size = parameters["binary_data_size"]
        if type(size) is not int or not 0 <= size <= len(body) - position:
            raise _bad_size(name, size, len(body) - position, request.model_name)
        end = position + size
        inputs.append(InputTensor(name, datatype, shape, body[position:end], base + position if base >= 0 else -1))
        position = end
    return position


def _read_outputs(
    request: InferRequest, entries: list[Entry], default: bool, classes: dict[str, int], memory: ClientMemory
) -> dict[str, bool]:
    """Whether each of the outputs asked for is to be binary, in the client's order.

    Note the `classes` that it wants, and in the request the places in its own memory.
    """
    flags: dict[str, bool] = {}
    for entry in entries:
        try:
            name = entry["name"]
        except (KeyError, TypeError):
            raise _incomplete(entry, "output", ("name",)) from None
        if type(name) is not str or name in flags:
            raise _bad_name(request, name, "output")
        parameters = entry.get("parameters") or _NOTHING
        if type(parameters) is not dict:
            raise _bad_parameters(name, "output", parameters)
        if "shared_memory_region" in parameters:
            if parameters.get("binary_data", False) is not False:
                raise invalid("Output can't set both 'shared_memory_region' and 'binary_data'")
            if "classification" in parameters:
                raise invalid("Output can't set both 'shared_memory_region' and 'classification'")
            request.place_output(name, memory.output(*_read_place(f"output '{name}'", parameters)))
            flags[name] = False  # whatever the others are: its place is in the document
            continue
        if "classification" in parameters:
            count = parameters["classification"]
            if type(count) is not int or count < 0:
                raise invalid(f"'classification' of output '{name}' must be an integer from 0 on, got {shown(count)}")
            if count:  # zero classes are none
                classes[name] = count
        flag = parameters.get("binary_data", default)
        if type(flag) is not bool:
            raise invalid(f"'binary_data' of output '{name}' must be true or false, got {shown(flag)}")
        flags[name] = flag
    return flags


def _read_place(what: str, parameters: Mapping[str, Any]) -> tuple[str, int, int]:
    """Region, offset and size of a tensor in the memory of a client."""
    region, offset = parameters["shared_memory_region"], parameters.get("shared_memory_offset", 0)
    size = parameters.get("shared_memory_byte_size", 0)
    if type(region) is not str:
        raise invalid(f"'shared_memory_region' of {what} must be a string, got {shown(region)}")
    for key, value in (("shared_memory_offset", offset), ("shared_memory_byte_size", size)):
        if type(value) is not int or value < 0:
            raise invalid(f"'{key}' of {what} must be an integer from 0 on, got {shown(value)}")
    return region, offset, size


def _options(flags: dict[str, bool], classes: dict[str, int]) -> OutputOptions:
    ways = set(flags.values())
    if classes:
        return OutputOptions(default_binary=False, binary=flags, classes=classes)
    return output_options(flags if len(ways) > 1 else True in ways)


def _bad_name(request: InferRequest, name: object, what: str) -> InferenceError:
    if type(name) is not str:
        return invalid(f"the 'name' of every {what} must be a string, got {shown(name)}")
    return request.failure(f"{what} '{name}' already exists in request", Code.INVALID_ARG)


def _bad_datatype(name: str, datatype: object) -> InferenceError:
    if type(datatype) is not str:
        return invalid(f"'datatype' of input '{name}' must be a string, got {shown(datatype)}")
    return invalid(f"invalid datatype for input {name}")


def _bad_shape(name: str, shape: object) -> InferenceError:
    if type(shape) is not list:
        return invalid(f"'shape' of input '{name}' must be a list, got {shown(shape)}")
    if len(shape) > DIMS_MAX:
        return invalid(f"input '{name}' has {len(shape)} dimensions, expected at most {DIMS_MAX}")
    culprit = next(dim for dim in shape if type(dim) is not int or not 0 <= dim <= DIM_MAX)
    return invalid(f"'shape' of input '{name}' must hold integers from 0 to {DIM_MAX}, got {shown(culprit)}")


def _bad_parameters(name: str, what: str, parameters: object) -> InferenceError:
    return invalid(f"'parameters' of {what} '{name}' must be an object, got {shown(parameters)}")


def _bad_size(name: str, size: object, left: int, model: str) -> InferenceError:
    if type(size) is not int or size < 0:
        return invalid(f"'binary_data_size' of input '{name}' must be an integer from 0 on, got {shown(size)}")
    return invalid(f"unexpected size for input '{name}', expecting {size - left} additional bytes for model '{model}'")


def _incomplete(entry: object, what: str, members: tuple[str, ...]) -> InferenceError:
    if type(entry) is not dict:
        return invalid(f"every {what} must be an object, got {json_name(entry)}")
    if "name" not in entry:
        return invalid(f"an {what} has no 'name'")
    missing = next(member for member in members if member not in entry)
    return invalid(f"{what} {shown(entry['name'])} has no '{missing}'")


def _unreadable(entry: Mapping[str, object], parameters: Mapping[str, object]) -> InferenceError:
    """The error of an input whose contents are given in no way, or in several."""
    given = ["'data'"] if "data" in entry else []
    given += [f"'{key}'" for key in ("binary_data_size", "shared_memory_region") if key in parameters]
    return invalid(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {'set ' + ' '.join(given) if given else 'no field is set'}"
    )
