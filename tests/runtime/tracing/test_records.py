# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

from pyruntime.runtime.tracing.records import encode_records
from pyruntime.runtime.tracing.trace import TensorNote


def test_records(traces):
    """Triton's form: the trace's request, its times, and its tensors, each with the trace's number."""
    trace = traces.trace(id=4, request_id="r")
    trace.note("REQUEST_START", 12)
    trace.notes.append(("TENSOR_QUEUE_INPUT", TensorNote("IN", "INT8", (1, 2), b"\1\2", 2)))
    assert json.loads(b"[%b]" % encode_records([trace])) == [
        {"id": 4, "model_name": "m", "model_version": 3, "request_id": "r"},
        {"id": 4, "timestamps": [{"name": "REQUEST_START", "ns": 12}]},
        {
            "id": 4,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "IN", "data": "1,2", "shape": "1,2", "dtype": "INT8"},
        },
    ]


def test_several(traces):
    """A call names its caller; a request without an id has none."""
    caller, call = traces.trace(id=1), traces.trace(id=2, parent_id=1)
    assert json.loads(b"[%b]" % encode_records([call, caller])) == [
        {"id": 2, "model_name": "m", "model_version": 3, "parent_id": 1},
        {"id": 1, "model_name": "m", "model_version": 3},
    ]
