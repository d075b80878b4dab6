# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the shared memory of clients. All raise what the core's `client_memory` does."""

from __future__ import annotations

from pyruntime.runtime.app.state import Core
from pyruntime.runtime.frontends.grpc.schema import (
    CudaSharedMemoryRegisterResponse,
    CudaSharedMemoryStatusResponse,
    CudaSharedMemoryUnregisterResponse,
    Message,
    SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryStatusResponse,
    SystemSharedMemoryUnregisterResponse,
)


def system_status(core: Core, request: Message) -> Message:
    """One region, or all of them without a name."""
    response = SystemSharedMemoryStatusResponse()
    for row in core.client_memory.status(request.name):
        region = response.regions[row.name]
        region.name, region.key, region.offset, region.byte_size = row.name, row.key, row.offset, row.byte_size
    return response


def system_register(core: Core, request: Message) -> Message:
    """Some bytes of an object that the client made."""
    core.client_memory.register(request.name, request.key, request.offset, request.byte_size)
    return SystemSharedMemoryRegisterResponse()


def system_unregister(core: Core, request: Message) -> Message:
    """One region, or all of them without a name."""
    core.client_memory.unregister(request.name)
    return SystemSharedMemoryUnregisterResponse()


def cuda_status(core: Core, request: Message) -> Message:
    """One region, or all of them without a name."""
    response = CudaSharedMemoryStatusResponse()
    for row in core.client_memory.status_cuda(request.name):
        region = response.regions[row.name]
        region.name, region.device_id, region.byte_size = row.name, row.device_id, row.byte_size
    return response


def cuda_register(core: Core, request: Message) -> Message:
    """Memory of a device that the client allocated."""
    core.client_memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
    return CudaSharedMemoryRegisterResponse()


def cuda_unregister(core: Core, request: Message) -> Message:
    """One region, or all of them without a name."""
    core.client_memory.unregister_cuda(request.name)
    return CudaSharedMemoryUnregisterResponse()
