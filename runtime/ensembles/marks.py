# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The sequence that a request belongs to, as it goes through the steps of an ensemble. (pure)

A step's model may change it for the steps behind it, by parameters of its response; the rules are Triton's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyruntime.runtime.requests.types import Parameter
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

# A correlation id, and the flags of a request in its sequence.
SequenceMark = tuple[int | str, int]


def changed_mark(mark: SequenceMark, parameters: Mapping[str, Parameter]) -> SequenceMark:
    """The mark after a response with these parameters. Raises InferenceError if one of them has another type."""
    sequence_id, flags = mark
    if "sequence_id" in parameters:
        given = parameters["sequence_id"]
        if isinstance(given, (bool, float)):
            raise InferenceError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
                Code.INVALID_ARG,
            )
        sequence_id = given
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        if name in parameters:
            is_set = parameters[name]
            if not isinstance(is_set, bool):
                raise InferenceError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL", Code.INVALID_ARG)
            flags = flags | flag if is_set else flags & ~flag
    return sequence_id, flags


def mark_parameters(mark: SequenceMark) -> dict[str, Parameter]:
    """The parameters that each response of an ensemble has. Triton repeats them for each output."""
    sequence_id, flags = mark
    return {
        "sequence_id": sequence_id,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }
