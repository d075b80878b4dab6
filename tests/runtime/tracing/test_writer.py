# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from pyruntime.runtime.tracing import writer as module
from pyruntime.runtime.tracing.buckets import Write
from pyruntime.runtime.tracing.writer import TraceWriter

LIMIT_S = 60
LATER_S = 3600.0


class Sink:
    """Notes the traces. While `open` is not set it blocks."""

    def __init__(self):
        self.batches = []
        self.written = threading.Event()
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.fails = False

    def size(self, write):
        return len(write.traces)

    def write(self, writes, closing):
        self.entered.set()
        assert self.open.wait(LIMIT_S)
        if self.fails:
            self.fails = False
            raise RuntimeError("of the sink")
        self.batches.append([trace for write in writes for trace in write.traces])
        self.written.set()


def some(*traces):
    return Write(list(traces), apart=False)


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def make(sink):
    writers = []

    def make(delay_s=0.0, batch_max=100, queue_max=1000):
        writers.append(TraceWriter(sink, delay_s, batch_max, queue_max))
        return writers[-1]

    yield make
    sink.open.set()
    for writer in writers:
        writer.close()


def test_written_soon(make, sink):
    """Traces are written by another thread, which is started for the first one."""
    threads = {*threading.enumerate()}
    writer = make()
    assert {*threading.enumerate()} <= threads
    writer.put(some("a"))
    assert sink.written.wait(LIMIT_S)
    assert sink.batches == [["a"]]


def test_full_batch(make, sink):
    """As soon as there is enough for a batch it does not wait any longer."""
    writer = make(delay_s=LATER_S, batch_max=2)
    writer.put(some("a"))
    writer.put(some("b"))
    assert sink.written.wait(LIMIT_S)
    assert sink.batches == [["a", "b"]]


def test_close(make, sink):
    """All that waits is written at the end, batch by batch."""
    writer = make(delay_s=LATER_S, batch_max=2)
    sink.open.clear()
    for name in "abc":
        writer.put(some(name))
    sink.open.set()
    writer.close()
    assert sink.batches == [["a", "b"], ["c"]]


def test_close_of_nothing(make):
    """A writer that was never used can be closed."""
    make().close()


def test_close_has_an_end(make, sink, monkeypatch, caplog):
    """A sink that takes nothing does not keep the server from stopping, and the log says what that costs."""
    monkeypatch.setattr(module, "CLOSE_S_MAX", 0.0)
    writer = make()
    sink.open.clear()
    writer.put(some("a"))
    writer.close()
    assert sink.batches == []
    assert [record.getMessage() for record in caplog.records] == [
        "traces are lost, because writing the last ones took more than 0 s"
    ]


def test_too_many(make, sink, caplog):
    """Traces that come faster than they can be written are dropped and counted."""
    writer = make(batch_max=2, queue_max=2)
    sink.open.clear()
    writer.put(some("a"))
    assert sink.entered.wait(LIMIT_S)
    writer.put(some("b", "c", "d"))  # one is taken, however large it is
    writer.put(some("e"))
    writer.put(some("f"))
    sink.open.set()
    writer.close()
    assert sink.batches == [["a"], ["b", "c", "d"]]
    assert [record.getMessage() for record in caplog.records] == [
        "2 traces or spans were dropped: they cannot be written as fast as they come"
    ]


def test_sink_that_fails(make, sink, caplog):
    """A bug in a sink loses the traces of that write only."""
    writer = make()
    sink.fails = True
    sink.open.clear()
    writer.put(some("a"))
    assert sink.entered.wait(LIMIT_S)
    writer.put(some("b"))
    sink.open.set()
    writer.close()
    assert sink.batches == [["b"]]
    assert [record.getMessage() for record in caplog.records] == ["traces cannot be written"]
