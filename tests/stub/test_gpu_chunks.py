# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs that a stub opens, with tensors of other processes. Another process is the broker."""

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.stub import gpu_chunks
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.pooled import pooled_tensor
from pyruntime.utils.gpu.driver import GpuError, gpu_error
from pyruntime.utils.messages import CLOSED_GPU, MapGpu
from pyruntime.utils.request_codec import MEMORY_GPU

from .gpu_broker import CHUNK

pytestmark = pytest.mark.processes


def test_tensors_of_others(broker):
    """They are read behind the event of their writer; the memory is closed when the host says so."""
    writer = broker.process
    pointer, own, event = writer.allocate(16), writer.allocate(16), writer.create_event()
    writer.write(own, b"0123456789abcdef")
    writer.copy(pointer, own, 16)
    writer.record(event)
    broker.memory.chunks.announce(MapGpu(20, "GPU-1", writer.export(pointer), writer.export_event(event), 16))
    chunk, offset = broker.memory.chunks.find((20 << 36) + 4)
    target = bytearray(3)
    chunk.order()
    gpu_of(chunk.gpu).read(chunk.at(offset), target)
    assert target == b"456"
    assert broker.memory.chunks.find(20 << 36)[0] is chunk
    broker.memory.unmap(20)
    assert broker.told == [(CLOSED_GPU, [20])]
    writer.free(pointer)
    with pytest.raises(TritonModelException, match="the tensor is gone"):
        chunk.at(0)


def test_ordered_once(broker, written):
    """What was waited for once can be read after its writer has ended: only the memory must still be there."""
    chunk, _ = broker.memory.chunks.find(20 << 36)
    target = bytearray(12)
    written.__dlpack__(stream=5)
    gpu_of(0).read_by(5, written._on_gpu.pointer, target)
    assert np.frombuffer(target, np.int32).tolist() == [0, 1, 2]
    chunk.event = -1  # nobody can wait for it
    assert written.as_numpy().tolist() == [0, 1, 2]
    written.to_dlpack()
    written.__dlpack__(stream=6)
    gpu_of(0).read_by(6, written._on_gpu.pointer, target)


@pytest.fixture
def orphan(broker, peers):
    """As `written`, by a process other than the broker. Returns the tensor, that process, and the message."""
    writer = peers()
    broker.written = broker.process.allocate(64)
    pointer, own, event = writer.open(broker.process.export(broker.written)), writer.allocate(64), writer.create_event()
    writer.write(own, np.arange(16, dtype=np.int32).tobytes())
    writer.copy(pointer, own, 64)
    writer.record(event)
    message = MapGpu(20, "GPU-1", broker.process.export(broker.written), writer.export_event(event), 64)
    broker.memory.chunks.announce(message)
    tensor = pooled_tensor(broker.memory, ("A", "INT32", [3], (20 << 36) + 4, 12, MEMORY_GPU, 3), None)
    return SimpleNamespace(tensor=tensor, writer=writer, message=message)


def read_by_framework(tensor, stream):
    target = bytearray(12)
    tensor.__dlpack__(stream=stream)
    gpu_of(0).read_by(stream, tensor._on_gpu.pointer, target)
    return np.frombuffer(target, np.int32).tolist()


def in_main_memory(tensor):
    gpu_of(0)
    return tensor.as_numpy().tolist()


def settled(tensor):
    tensor.to_dlpack()
    return in_main_memory(tensor)


@pytest.mark.parametrize("read", [partial(read_by_framework, stream=5), in_main_memory, settled])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_writer_that_has_ended(broker, orphan, monkeypatch, read, is_open, is_told):
    """Its tensors are read without its event, which fails before the host says so, and is not used after that."""
    if is_open:
        broker.memory.chunks.find(20 << 36)
    orphan.writer.end()
    if is_told:
        broker.memory.chunks.announce(orphan.message._replace(event=b""))
        for call in ("open_event", "wait", "synchronize"):
            monkeypatch.setattr(gpu_of(0), call, pytest.fail)
    assert read(orphan.tensor) == [1, 2, 3]
    broker.memory.unmap(20)
    broker.process.free(broker.written)


def test_a_writer_that_ends_while_its_memory_is_opened(broker, orphan, monkeypatch):
    """The event that was opened just before is not used."""
    opened = gpu_chunks.open_chunk

    def slow(message):
        chunk = opened(message)
        orphan.writer.end()
        broker.memory.chunks.announce(message._replace(event=b""))
        return chunk

    monkeypatch.setattr(gpu_chunks, "open_chunk", slow)
    monkeypatch.setattr(gpu_of(0), "wait", pytest.fail)
    assert in_main_memory(orphan.tensor) == [1, 2, 3]


def test_the_end_of_a_writer_waits_for_nobody(broker, orphan):
    """The thread that reads messages goes on, though another one uses the memory."""
    chunk, _ = broker.memory.chunks.find(20 << 36)
    with chunk.lock:
        thread = threading.Thread(
            target=broker.memory.chunks.announce, args=[orphan.message._replace(event=b"")], daemon=True
        )
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_an_event_that_cannot_be_destroyed(broker, orphan, monkeypatch):
    """The memory is closed nevertheless, so that the broker may free it."""
    broker.memory.chunks.find(20 << 36)

    def fail(event):
        raise gpu_error("CUDA_ERROR_INVALID_HANDLE", "destroy_event")

    monkeypatch.setattr(gpu_of(0), "destroy_event", fail)
    orphan.writer.end()
    broker.memory.unmap(20)
    broker.process.free(broker.written)


def test_a_tensor_that_is_lost(broker, written):
    """It fails with a sentence, whether the process has opened it or not; what was copied stays."""
    array = written.as_numpy()
    broker.memory.unmap(20)
    for use in (written.to_dlpack, lambda: broker.memory.chunks.find(20 << 36)):
        with pytest.raises((TritonModelException, GpuError), match="the broker of the GPU was lost"):
            use()
    assert written.as_numpy() is array


def test_an_event_that_is_destroyed(broker, written):
    """Who comes after the end of the memory is told of it, and does not use its event."""
    chunk, _ = broker.memory.chunks.find(20 << 36)
    broker.memory.unmap(20)
    for use in (chunk.order, chunk.complete):
        with pytest.raises(TritonModelException, match="the tensor is gone"):
            use()


@pytest.mark.parametrize("call", ["read", "copy", "synchronize"])
def test_memory_is_not_closed_while_it_is_used(broker, written, monkeypatch, call):
    """Other threads can close it before or after."""
    chunk, _ = broker.memory.chunks.find(20 << 36)
    could_close = []

    def use(*_):
        thread = threading.Thread(target=lambda: could_close.append(chunk.lock.acquire(blocking=False)))
        thread.start()
        thread.join()

    monkeypatch.setattr(gpu_of(0), call, use)
    if call == "synchronize":
        written.to_dlpack()
    elif call == "copy":
        written._on_gpu.copy_on_gpu(0)
    else:
        written.as_numpy()
    assert could_close == [False]


def test_the_thread_that_reads_messages_goes_on_while_memory_is_opened(broker, written, monkeypatch):
    """To open the first memory on a GPU makes a context, which takes seconds."""
    opened = gpu_chunks.open_chunk

    def slow(message):
        thread = threading.Thread(target=read_messages, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        return opened(message)

    def read_messages():
        broker.memory.chunks.announce(MapGpu(21, "GPU-1", b"", b"", 16))
        broker.memory.unmap(21)

    monkeypatch.setattr(gpu_chunks, "open_chunk", slow)
    assert broker.memory.chunks.find(20 << 36)[0].number == 20


def test_memory_that_is_lost_while_it_is_opened(broker, written, monkeypatch):
    """It is closed again, and not found later."""
    opened, chunks = gpu_chunks.open_chunk, []

    def slow(message):
        chunks.append(opened(message))
        broker.memory.unmap(20)
        return chunks[0]

    monkeypatch.setattr(gpu_chunks, "open_chunk", slow)
    for _ in range(2):
        with pytest.raises(GpuError, match="the broker of the GPU was lost"):
            broker.memory.chunks.find(20 << 36)
    assert [chunk.pointer for chunk in chunks] == [None]


def test_memory_whose_owner_ends_before_it_is_opened(broker, peers):
    """The host says so later than the driver does: the error says what the driver does not."""
    owner = peers()
    handle = owner.export(owner.allocate(CHUNK))
    broker.memory.chunks.announce(MapGpu(20, "GPU-1", handle, b"", CHUNK))
    owner.end()
    with pytest.raises(GpuError, match="the broker of the GPU was lost, or the client that the memory belongs to"):
        broker.memory.chunks.find(20 << 36)


@pytest.mark.parametrize("reason", ["CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_OUT_OF_MEMORY"])
def test_an_event_that_cannot_be_opened(broker, written, monkeypatch, reason):
    """The writer has ended if its handle is none any more; other failures leave nothing open."""

    def fail(handle):
        raise gpu_error(reason, "open_event")

    monkeypatch.setattr(gpu_of(0), "open_event", fail)
    closed = []
    monkeypatch.setattr(gpu_of(0), "close", closed.append)
    if reason == "CUDA_ERROR_INVALID_HANDLE":
        chunk, _ = broker.memory.chunks.find(20 << 36)
        assert (chunk.event, closed) == (None, [])
    else:
        with pytest.raises(GpuError):
            broker.memory.chunks.find(20 << 36)
        assert len(closed) == 1
