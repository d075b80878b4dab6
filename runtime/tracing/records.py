# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes traces in the format of Triton's trace files. (pure)

file    := "[" record ("," record)* "]"
record  := {"id", "model_name", "model_version", "request_id"?, "parent_id"?}
         | {"id", "timestamps": [{"name", "ns"}]}
         | {"id", "activity", "tensor": {"name", "data", "shape", "dtype"}}

All records with one id belong to one trace. A trace with a `parent_id` is of a call that the parent's model made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import orjson

from pyruntime.runtime.tracing.tensor_text import tensor_text
from pyruntime.runtime.tracing.trace import TensorNote, Trace


def encode_records(traces: Iterable[Trace]) -> bytes:
    """The records of traces, with commas between."""
    return orjson.dumps([record for trace in traces for record in _records(trace)])[1:-1]


_Record: TypeAlias = dict[str, object]


def _records(trace: Trace) -> list[_Record]:
    head: _Record = {
        "id": trace.id,
        "model_name": trace.model_name,
        "model_version": trace.model_version,
    }
    if trace.request_id:
        head["request_id"] = trace.request_id
    if trace.parent_id:
        head["parent_id"] = trace.parent_id
    return [head, *[_note(trace.id, activity, what) for activity, what in trace.notes]]


def _note(id: int, activity: str, what: int | TensorNote) -> _Record:
    if isinstance(what, int):
        return {"id": id, "timestamps": [{"name": activity, "ns": what}]}
    tensor = {
        "name": what.name,
        "data": tensor_text(what),
        "shape": ",".join(map(str, what.shape)),
        "dtype": what.datatype,
    }
    return {"id": id, "activity": activity, "tensor": tensor}
