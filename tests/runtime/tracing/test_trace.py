# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import os
import struct
from types import SimpleNamespace

import pytest

from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import ClientContents, InferResponse, OutputPlace, OutputTensor
from pyruntime.runtime.tracing import trace as module
from pyruntime.runtime.tracing.trace import TensorNote
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError


def response(*outputs):
    return InferResponse("m", 3, "7", list(outputs))


def output(data=b"\1\0\0\0", name="OUT"):
    return OutputTensor(name, "INT32", [len(data) // 4], data)


def times(trace):
    return [(name, what) for name, what in trace.notes if isinstance(what, int)]


def tensors(trace):
    return [(name, what) for name, what in trace.notes if not isinstance(what, int)]


class TestTimes:
    def test_of_a_request(self, traces):
        """The events of a request are noted with their times."""
        trace = traces.trace()
        told = []
        job = traces.job(respond=lambda outcome, final: told.append((outcome, final)))
        trace.note("HTTP_RECV_START", 800)
        trace.attach(job, traces.region)
        trace.executed(1100, 1200, 1300)
        traces.now_ns = 1400
        job.respond(outcome := response(), True)
        assert told == [(outcome, True)]
        trace.note("HTTP_SEND_START", 1500)
        assert traces.ended == []
        trace.close()
        assert traces.ended == [trace]
        assert times(trace) == [
            ("HTTP_RECV_START", 800),
            ("REQUEST_START", 900),
            ("QUEUE_START", 1000),
            ("COMPUTE_START", 1100),
            ("COMPUTE_INPUT_END", 1200),
            ("COMPUTE_OUTPUT_START", 1300),
            ("INFER_RESPONSE_COMPLETE", 1400),
            ("COMPUTE_END", 1400),
            ("REQUEST_END", 1400),
            ("HTTP_SEND_START", 1500),
        ]
        assert trace.failure == ""

    def test_of_many_responses(self, traces):
        """Each response of a decoupled model is noted; an end without a response is not."""
        trace = traces.trace()
        job = traces.job()
        trace.attach(job, traces.region)
        for now_ns, outcome in ((1, response()), (2, response()), (3, None)):
            traces.now_ns = now_ns
            if outcome is None:
                trace.streamed(1050, now_ns)
            job.respond(outcome, outcome is None)
        assert times(trace)[2:] == [
            ("INFER_RESPONSE_COMPLETE", 1),
            ("INFER_RESPONSE_COMPLETE", 2),
            ("COMPUTE_START", 1050),
            ("COMPUTE_INPUT_END", 1050),
            ("COMPUTE_OUTPUT_START", 3),
            ("COMPUTE_END", 3),
            ("REQUEST_END", 3),
        ]

    def test_sender_after_execute(self, traces):
        """Where execute has returned before the sender was done, that says when it was executed."""
        trace = traces.trace()
        trace.attach(traces.job(), traces.region)
        trace.executed(1, 2, 3)
        trace.streamed(4, 5)
        assert times(trace)[2:] == [("COMPUTE_START", 1), ("COMPUTE_INPUT_END", 2), ("COMPUTE_OUTPUT_START", 3)]

    def test_sender_before_execute(self, traces):
        """Where the sender was done before execute returned, that comes too late."""
        trace = traces.trace()
        job = traces.job()
        trace.attach(job, traces.region)
        trace.streamed(4, 5)
        job.respond(None, True)
        noted = list(trace.notes)
        trace.executed(1, 2, 3)
        assert trace.notes == noted

    def test_without_timestamps(self, traces):
        """Where only tensors are traced there are no times."""
        trace = traces.trace(traces.tree(timestamps=False))
        job = traces.job()
        trace.attach(job, traces.region)
        trace.executed(1, 2, 3)
        job.respond(response(), True)
        assert trace.notes == []

    def test_limit(self, traces, monkeypatch):
        """The notes of a model that streams for ever are limited."""
        monkeypatch.setattr(module, "NOTES_MAX", 4)
        trace = traces.trace(traces.tree(tensors=True))
        job = traces.job()
        trace.attach(job, traces.region)
        for _ in range(5):
            job.respond(response(output()), False)
        assert len(trace.notes) == 4

    def test_nothing_after_the_end(self, traces):
        """A complete trace is passed on, and does not change."""
        trace = traces.trace(parent_id=4)
        job = traces.job()
        trace.attach(job, traces.region)
        job.respond(response(), True)
        noted = list(trace.notes)
        trace.note("HTTP_SEND_END", 5)
        assert trace.notes == noted


class TestEnds:
    def test_client_first(self, traces):
        """A client that hangs up does not end the trace before the model has answered."""
        trace = traces.trace()
        job = traces.job()
        trace.attach(job, traces.region)
        trace.close()
        assert traces.ended == []
        job.respond(response(), True)
        assert traces.ended == [trace]
        assert times(trace)[-1] == ("REQUEST_END", 1000)

    def test_of_a_call(self, traces):
        """The trace of a call is complete when the call is answered."""
        trace = traces.trace(parent_id=4)
        job = traces.job()
        trace.attach(job, traces.region)
        job.respond(response(), False)
        assert traces.ended == []
        job.respond(None, True)
        assert traces.ended == [trace]

    @pytest.mark.parametrize(
        ("failure", "told"),
        [(InferenceError("no luck"), "no luck"), (InferenceError("", Code.CANCELLED), "CANCELLED")],
    )
    def test_failure(self, traces, failure, told):
        """The failure of a request is kept."""
        trace = traces.trace()
        job = traces.job()
        trace.attach(job, traces.region)
        job.respond(failure, True)
        assert trace.failure == told
        assert [name for name, _ in times(trace)] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]

    def test_refused(self, traces):
        """A job that could not be started is not answered: the trace ends with the client's answer."""
        trace = traces.trace()
        trace.attach(traces.job(), traces.region)
        trace.refused(InferenceError("the queue is full", Code.UNAVAILABLE))
        trace.close()
        assert traces.ended == [trace]
        assert (trace.failure, times(trace)[-1]) == ("the queue is full", ("REQUEST_END", 1000))

    def test_answered_otherwise(self, traces):
        """An answer that does not come from the model ends the trace, too."""
        trace = traces.trace(parent_id=4)
        job = traces.job()
        trace.attach(job, traces.region)
        told = []
        job.respond = trace.answering(lambda outcome, final: told.append(outcome.message))
        job.respond(InferenceError("refused"), True)
        assert (told, traces.ended, trace.failure) == (["refused"], [trace], "refused")


class TestContext:
    def test_given(self, traces):
        """The model gets the context."""
        trace = traces.trace(context="12")
        job = traces.job()
        trace.attach(job, traces.region)
        assert job.trace_context == "12"
        assert job.trace is trace

    def test_replaced(self, traces):
        """The context of a call is that of the call, not that of its caller."""
        trace = traces.trace(context="12")
        job = traces.job(context="11")
        trace.attach(job, traces.region)
        assert job.trace_context == "12"


class TestTensors:
    def test_inputs(self, traces):
        """Inputs are copied, wherever they lie."""
        traces.memory[64:72] = struct.pack("<ii", 1, 2)
        other = SimpleNamespace(number=9, view=memoryview(struct.pack("<iii", 7, 8, 9)))
        trace = traces.trace(traces.tree(tensors=True))
        job = traces.job(
            ("A", "INT32", [2], 64, 8, 0, 0),
            ("B", "INT32", [1], address(9, 4), 4, 0, 0),
            ("C", "UINT8", [1, 2], b"xy", 2, 0, 0),
        )
        job.regions = [other]
        trace.attach(job, traces.region)
        traces.memory[64:72] = bytes(8)
        assert tensors(trace) == [
            ("TENSOR_QUEUE_INPUT", TensorNote("A", "INT32", (2,), struct.pack("<ii", 1, 2), 8)),
            ("TENSOR_QUEUE_INPUT", TensorNote("B", "INT32", (1,), struct.pack("<i", 8), 4)),
            ("TENSOR_QUEUE_INPUT", TensorNote("C", "UINT8", (1, 2), b"xy", 2)),
        ]

    def test_own_region_by_number(self, traces):
        """A call may refer to the model's own region by its number."""
        traces.memory[8:12] = b"abcd"
        trace = traces.trace(traces.tree(tensors=True))
        trace.attach(traces.job(("A", "UINT8", [4], address(5, 8), 4, 0, 0)), traces.region)
        assert tensors(trace)[0][1].data == b"abcd"

    def test_outputs(self, traces):
        """The outputs of each response are copied before it is passed on."""
        trace = traces.trace(traces.tree(tensors=True))
        data = bytearray(b"\1\0\0\0")
        job = traces.job(respond=lambda outcome, final: data.__setitem__(0, 9))
        trace.attach(job, traces.region)
        job.respond(response(output(memoryview(data))), True)
        assert tensors(trace) == [("TENSOR_BACKEND_OUTPUT", TensorNote("OUT", "INT32", (1,), b"\1\0\0\0", 4))]

    def test_memory_of_clients(self, traces, tmp_path):
        """Tensors in a client's memory are read from there, inputs and outputs."""
        (tmp_path / "memory").write_bytes(b"....inputoutput")
        region = ClientRegion(os.open(tmp_path / "memory", os.O_RDONLY))
        try:
            trace = traces.trace(traces.tree(tensors=True))
            job = traces.job(("A", "UINT8", [5], address(region.number, 4), 5, 0, 0))
            job.regions = [region]
            trace.attach(job, traces.region)
            contents = ClientContents(region, address(region.number, 9), 100)
            placed = OutputTensor("OUT", "UINT8", [6], b"", place=OutputPlace("r", 0, 6, contents))
            job.respond(response(placed), True)
        finally:
            region.close()
        assert [(note.data, note.size) for _, note in tensors(trace)] == [(b"input", 5), (b"output", 6)]

    def test_without_tensors(self, traces):
        """Tensors are not copied unless they are traced."""
        trace = traces.trace()
        job = traces.job(("A", "INT32", [2], 64, 8, 0, 0))
        trace.attach(job, traces.region)
        job.respond(response(output()), True)
        assert tensors(trace) == []

    def test_large(self, traces, monkeypatch):
        """Of a large tensor only the beginning is kept, and of many tensors together only so much."""
        monkeypatch.setattr(module, "TENSOR_BYTES_MAX", 8)
        tree = traces.tree(tensors=True)
        tree.bytes_left = 12
        trace = traces.trace(tree)
        trace.attach(
            traces.job(("A", "UINT8", [10], b"0123456789", 10, 0, 0), ("B", "UINT8", [6], b"012345", 6, 0, 0)),
            traces.region,
        )
        assert [(note.data, note.size) for _, note in tensors(trace)] == [(b"01234567", 10), (b"0123", 6)]
        assert tree.bytes_left == 0


def test_repr(traces):
    """A trace says whose it is."""
    assert repr(traces.trace(id=4)) == "<Trace 4 of m [0 notes]>"
