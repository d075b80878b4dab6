# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the shared memory of clients. All raise the errors of `ServerState.client_memory`."""

from __future__ import annotations

from pyruntime.runtime.app.slices import in_slices
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.method import Reply, reply_after
from pyruntime.runtime.frontends.grpc.schema import (
    CudaSharedMemoryRegisterResponse,
    CudaSharedMemoryStatusResponse,
    CudaSharedMemoryUnregisterResponse,
    Message,
    SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryStatusResponse,
    SystemSharedMemoryUnregisterResponse,
)
from pyruntime.utils.errors import InferenceError


def system_status(state: ServerState, request: Message) -> Message:
    """Describe one region, or all of them without a name."""
    response = SystemSharedMemoryStatusResponse()
    for row in state.client_memory.status(request.name):
        region = response.regions[row.name]
        region.name, region.key, region.offset, region.byte_size = row.name, row.key, row.offset, row.byte_size
    return response


def system_register(state: ServerState, request: Message) -> Message:
    """Register bytes of a shared memory object that the client created."""
    state.client_memory.register(request.name, request.key, request.offset, request.byte_size)
    return SystemSharedMemoryRegisterResponse()


def system_unregister(state: ServerState, request: Message, reply: Reply) -> None:
    """Unregister one region, or all of them without a name. Replies once they are closed."""

    def closed(parts: list[None] | InferenceError) -> None:
        reply(parts if isinstance(parts, InferenceError) else SystemSharedMemoryUnregisterResponse())

    in_slices(lambda: state.tasks, state.client_memory.unregister(request.name), closed, "unregister memory")


def cuda_status(state: ServerState, request: Message) -> Message:
    """Describe one region, or all of them without a name."""
    response = CudaSharedMemoryStatusResponse()
    for row in state.client_memory.status_cuda(request.name):
        region = response.regions[row.name]
        region.name, region.device_id, region.byte_size = row.name, row.device_id, row.byte_size
    return response


def cuda_register(state: ServerState, request: Message, reply: Reply) -> None:
    """Register memory of a GPU that the client allocated. Replies once it is open."""
    memory = state.client_memory
    work = memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
    state.tasks.create_task(reply_after(work, CudaSharedMemoryRegisterResponse(), reply))


def cuda_unregister(state: ServerState, request: Message, reply: Reply) -> None:
    """Unregister one region, or all of them without a name. Replies once they are closed."""
    work = state.client_memory.unregister_cuda(request.name)
    state.tasks.create_task(reply_after(work, CudaSharedMemoryUnregisterResponse(), reply))
