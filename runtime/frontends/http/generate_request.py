# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes the body of a generate request. (pure)

body := {"id"?, "parameters"?: {(<input> | <parameter>)*}, (<input> | <parameter>)*}

A member that has the name of one of the model's inputs is that input, every other one is a parameter of the request;
those in "parameters" are no different from those beside it. As in Triton all of them go to the model, the id too: what
an inference request says to the server by them, a sequence or a timeout for instance, is not said here. Parameters
cannot be lists or objects; the model gets the JSON text of such a value. A request says neither shapes nor datatypes:
an input has those of the model's configuration. Whether the inputs suit the model is not asked here.
"""

from __future__ import annotations

import math

import orjson

from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.frontends.common.json_document import find_duplicate, invalid, json_name, parse_document
from pyruntime.runtime.frontends.common.request_parameters import read_custom_parameters, read_id
from pyruntime.runtime.frontends.http.json_tensors import flatten, pack
from pyruntime.runtime.frontends.http.long_strings import LongStrings
from pyruntime.runtime.json_types import JsonObject
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.errors import Code, InferenceError

# Inputs are lists of the document, so it has more values than others. orjson parses as many in some 50 ms, in which no
# other thread runs.
VALUES_MAX = 1 << 20
# The most characters of all strings among the parameters: a model reads its parameters from one message, which has room
# for 16 MiB. Tensors may be longer.
PARAMETER_CHARACTERS_MAX = 4 << 20


def parsed_bytes(strings: LongStrings) -> int:
    """How many bytes the strings of a document may take while it is decoded, as Python's strings and as tensors.

    A string takes up to 4 bytes for each character if one of its characters is not in Latin-1. Long ones become tensors
    without becoming strings.
    """
    rest = strings.rest
    is_narrow = rest.isascii() and b"\\u" not in rest
    return (2 if is_narrow else 5) * len(rest) + strings.bytes


def decode_generate(strings: LongStrings, spec: ModelSpec) -> InferRequest:
    """The request for the model of `spec`. Raises InferenceError (INVALID_ARG) for every mistake."""
    text = strings.rest
    document = parse_document(text, VALUES_MAX)
    request = InferRequest(spec.name)
    twice = find_duplicate(text, document)
    if "id" in document:
        request.id = read_id(strings.restored(document.pop("id")))
    if twice is not None:
        raise _duplicate(request, twice, spec)
    nested = document.pop("parameters", {})
    if type(nested) is not dict:
        raise invalid(f"Expected JSON object for keyword: 'parameters', got {json_name(nested)}")
    for name in nested:
        if name in document:
            failure = _duplicate(request, name, spec)
            raise invalid(f"Converting keyword: 'parameters': {failure.message}")
    parameters: JsonObject = {"id": request.id} if request.id else {}
    for name, value in (document | nested).items():
        tensor = spec.inputs.get(name)
        if tensor is None:
            whole = strings.restored(value)
            parameters[name] = whole if type(whole) not in (list, dict) else orjson.dumps(whole).decode()
        else:
            request.inputs.append(_read_input(tensor, value, strings))
    if sum(len(value) for value in parameters.values() if type(value) is str) > PARAMETER_CHARACTERS_MAX:
        raise invalid(f"the request's parameters have more than {PARAMETER_CHARACTERS_MAX} characters")
    read_custom_parameters(request, parameters)
    return request


def _duplicate(request: InferRequest, name: str, spec: ModelSpec) -> InferenceError:
    what = "input" if name in spec.inputs else "parameter"
    return request.failure(f"{what} '{name}' already exists in request", Code.INVALID_ARG)


def _read_input(tensor: TensorSpec, value: object, strings: LongStrings) -> InputTensor:
    elements = flatten(tensor.name, value) if type(value) is list else [value]
    shape = _fill(tensor, len(elements))
    if tensor.datatype == "BYTES":
        culprit = next((each for each in elements if type(each) is not str), "")
        if type(culprit) is not str:
            raise invalid(
                f"attempt to access JSON non-string as string: input '{tensor.name}' takes strings, got "
                f"{json_name(culprit)}"
            )
    contents = pack(tensor.name, tensor.datatype, shape, strings.packed(tensor.name, tensor.datatype, elements))
    return InputTensor(tensor.name, tensor.datatype, shape, contents, strings=len(elements))


def _fill(tensor: TensorSpec, count: int) -> list[int]:
    """The shape of `count` elements: the last variable dimension takes what the fixed ones leave, others are 1."""
    fixed = math.prod(dim for dim in tensor.shape if dim != -1)
    left, surplus = divmod(count, fixed) if fixed else (1, count)
    shape = []
    for dim in reversed(tensor.shape):
        shape.append(left if dim == -1 else dim)
        left = 1 if dim == -1 else left
    if surplus or left != 1:
        raise invalid(f"The schema can not convert input '{tensor.name}' to tensor with proper shape")
    return shape[::-1]
