# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The sequence that a request belongs to, as it goes through the steps of an ensemble. (pure)

A step's model may change it for all steps behind it, by parameters of its response; the rules are Triton's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyruntime.runtime.requests.types import Parameter
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

# A correlation id, and the flags of a request in its sequence.
SequenceMark = tuple[int | str, int]

_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}
_NAMES = {"sequence_id", *_FLAGS}

# Numbers of sequences have 64 bits without a sign, and numbers in parameters have one.
_UINT64_MAX = 2**64 - 1
_INT64_MAX = 2**63 - 1


def changed_mark(mark: SequenceMark, parameters: Mapping[str, Parameter]) -> SequenceMark:
    """The mark after a response with these parameters, of a step whose request had `mark`.

    With any parameter of the sequence, the flags are those that the response sets. Raises InferenceError if one of the
    parameters has another type.
    """
    if _NAMES.isdisjoint(parameters):
        return mark
    sequence_id, flags = mark[0], 0
    if "sequence_id" in parameters:
        given = parameters["sequence_id"]
        if isinstance(given, (bool, float)):
            raise InferenceError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
                Code.INVALID_ARG,
            )
        sequence_id = given & _UINT64_MAX if isinstance(given, int) else given
    for name, flag in _FLAGS.items():
        if name in parameters:
            is_set = parameters[name]
            if not isinstance(is_set, bool):
                raise InferenceError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL", Code.INVALID_ARG)
            flags |= flag if is_set else 0
    return sequence_id, flags


def mark_parameters(mark: SequenceMark) -> dict[str, Parameter]:
    """The parameters that each response of an ensemble has. Triton repeats them for each output.

    As in Triton, an id above the largest signed number of 64 bits is negative.
    """
    sequence_id, flags = mark
    if isinstance(sequence_id, int) and sequence_id > _INT64_MAX:
        sequence_id -= _UINT64_MAX + 1
    return {
        "sequence_id": sequence_id,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }
