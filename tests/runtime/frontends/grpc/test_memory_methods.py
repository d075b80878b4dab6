# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the shared memory of clients, over a stand-in that notes its calls."""

import asyncio
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from pyruntime.utils.errors import Code, InferenceError

HUGE = 2**64 - 1
ROWS = {
    "status": [
        SimpleNamespace(name="a", key="/k", offset=0, byte_size=64),
        SimpleNamespace(name="b", key="/l", offset=HUGE, byte_size=HUGE),
    ],
    "status_cuda": [SimpleNamespace(name="c", device_id=1, byte_size=HUGE)],
}


class ClientMemory:
    def __init__(self, failure=None):
        self.asked = []
        self._failure = failure

    def __getattr__(self, name):
        def ask(*arguments):
            self.asked.append((name, *arguments))
            if self._failure is not None:
                raise self._failure
            return iter(()) if name == "unregister" else ROWS.get(name)

        return ask


@pytest.fixture
def memory(call):
    call.state.client_memory = ClientMemory()
    return call.state.client_memory


@pytest.mark.parametrize("name", ["", "a"])
def test_system_status(call, memory, name):
    """Regions by their names."""
    regions = call("SystemSharedMemoryStatus", name=name).regions
    assert memory.asked == [("status", name)]
    assert {key: (each.name, each.key, each.offset, each.byte_size) for key, each in regions.items()} == {
        "a": ("a", "/k", 0, 64), "b": ("b", "/l", HUGE, HUGE),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "c"])
def test_cuda_status(call, memory, name):
    """Regions by their names."""
    regions = call("CudaSharedMemoryStatus", name=name).regions
    assert memory.asked == [("status_cuda", name)]
    assert {key: (each.name, each.device_id, each.byte_size) for key, each in regions.items()} == {"c": ("c", 1, HUGE)}


@pytest.mark.parametrize(
    ("name", "fields", "asked"),
    [
        (
            "SystemSharedMemoryRegister",
            {"name": "a", "key": "/k", "offset": HUGE, "byte_size": 8},
            ("register", "a", "/k", HUGE, 8),
        ),
        ("SystemSharedMemoryUnregister", {"name": "a"}, ("unregister", "a")),
        ("SystemSharedMemoryUnregister", {}, ("unregister", "")),
    ],
)
def test_changes(call, memory, name, fields, asked):
    """They are answered with an empty message."""
    response = call(name, **fields)
    assert memory.asked == [asked]
    assert response.DESCRIPTOR.name == f"{name}Response"
    assert response.SerializeToString() == b""


REGISTRATION = {"name": "c", "raw_handle": b"\x00\x01", "device_id": -1, "byte_size": 8}


@pytest.mark.parametrize("failure", [None, InferenceError("no", Code.INVALID_ARG)])
@pytest.mark.parametrize(
    ("method", "name", "fields"),
    [
        ("register_cuda", "CudaSharedMemoryRegister", REGISTRATION),
        ("unregister_cuda", "CudaSharedMemoryUnregister", {"name": "c"}),
        ("unregister_cuda", "CudaSharedMemoryUnregister", {"name": ""}),
    ],
)
def test_what_is_answered_later(call, failure, method, name, fields):
    """It is answered when the memory is open, or closed, or cannot be."""
    memory = call.state.client_memory = ClientMemory()

    async def work():
        if failure is not None:
            raise failure

    async def begin():
        async with asyncio.TaskGroup() as call.state.tasks:
            ROWS[method] = work()
            call.begin(name, **fields)
            assert call.replies == []

    with patch.dict(ROWS):
        asyncio.run(begin())
    assert memory.asked == [(method, *fields.values())]
    (reply,) = call.replies
    assert reply is failure if failure else reply.DESCRIPTOR.name == f"{name}Response"


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("verb", ["Status", "Register", "Unregister"])
def test_what_is_refused(call, kind, verb):
    """The error is that of the memory."""
    call.state.client_memory = ClientMemory(InferenceError("no", Code.ALREADY_EXISTS))
    assert call.error(f"{kind}SharedMemory{verb}") == (Code.ALREADY_EXISTS, "no")
