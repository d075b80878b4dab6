# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a configuration as JSON: the config endpoint's body and `args["model_config"]`. (pure)

The schema gives the names and the order of fields. A plain field is printed even with its default value, a list or map
even if empty, a message only if it is set, and of a oneof only the member that is set. protobuf's own JSON cannot
replace this module: it prints 64-bit integers as strings, where Triton prints numbers.
"""

from __future__ import annotations

import struct

import orjson
from google.protobuf.descriptor import FieldDescriptor

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.json_types import JsonObject, JsonValue

# The fewest digits that distinguish every float32 from its neighbours.
FLOAT32_DIGITS = 9


def render(config: Config) -> bytes:
    """The whole of `config` as one JSON object."""
    return orjson.dumps(_message(config))


def _message(message: Config) -> JsonObject:
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields if _is_shown(message, field)}


def _is_shown(message: Config, field: FieldDescriptor) -> bool:
    return not field.has_presence or bool(message.HasField(field.name))


def _field(message: Config, field: FieldDescriptor) -> JsonValue:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value_field = field.message_type.fields_by_name["value"]
        # Map entries have no order. Sorting them gives equal configurations equal renderings, which reloads compare.
        return {str(key): _value(value[key], value_field) for key in sorted(value)}
    if field.is_repeated:
        return [_value(item, field) for item in value]
    return _value(value, field)


def _value(value: Config, field: FieldDescriptor) -> JsonValue:
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return int(value) if named is None else named.name
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return _shortest_float32(value)
    plain: bool | int | float | str = value
    return plain


def _shortest_float32(value: float) -> float:
    """The double with the fewest digits that is the same float32: 0.1, and not 0.10000000149011612."""
    for digits in range(6, FLOAT32_DIGITS):
        shorter = float(f"{value:.{digits}g}")
        if struct.pack("f", shorter) == struct.pack("f", value):
            return shorter
    return float(f"{value:.{FLOAT32_DIGITS}g}")
