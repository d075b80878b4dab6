# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The interface to one GPU, and its errors. (pure)

It has what sharing tensors between processes needs, and nothing to compute with. Sizes and offsets are in bytes, and a
pointer is an address on the GPU. Memory belongs to the process that allocated it. Other processes open it by a *handle*
and must close it before its owner frees it.

Copies to and from main memory are complete when the method returns. Copies on the GPU are only *ordered*, like all work
for a GPU: another process must wait for an event that was recorded behind them before it reads the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Tuple

from pyruntime.utils.errors import PyruntimeError

if TYPE_CHECKING:
    from pyruntime.utils.gpu.native import NativeFunctions

# The size of a CUipcMemHandle and of a CUipcEventHandle.
HANDLE_BYTES = 64
# Tensors that processes share begin at a multiple of this, in bytes: a kernel whose loads are wider than its memory is
# aligned fails, and with it all that the process does afterwards. The widest loads of most kernels have 16 bytes, and
# XLA asks for as much of its inputs. What CUDA allocates is aligned to 256.
ALIGNED_BYTES = 16


class GpuProperties(NamedTuple):
    """A GPU, or a MIG slice of one, which is a GPU to all that uses it.

    `ordinal` is its number among those that this process may use, and `uuid` its name in CUDA_VISIBLE_DEVICES:
    "GPU-..." or "MIG-...". `compute_capability` is a pair such as (8, 0). `free_bytes` counts what all processes
    of the machine left.
    """

    ordinal: int
    uuid: str
    name: str
    compute_capability: Tuple[int, int]
    total_bytes: int
    free_bytes: int
    is_slice: bool


class GpuError(PyruntimeError):
    """The driver refused a call. `reason` is the driver's name for the cause, such as "CUDA_ERROR_INVALID_VALUE"."""

    def __init__(self, reason: str, call: str, explanation: str = "") -> None:
        super().__init__(f"{call}: {explanation or reason}")
        self.reason = reason
        self.call = call
        self.explanation = explanation or reason


class GpuMissingError(GpuError):
    """There is no such GPU, or no driver or package to use it with."""


class GpuMemoryError(GpuError):
    """The GPU has no memory left for this."""


class GpuHandleError(GpuError):
    """A handle or a pointer does not refer to memory, or an event, that may be used here and now."""


class GpuLostError(GpuError):
    """The GPU failed in this process. No later call of the process will succeed."""


_KINDS = {
    GpuMissingError: (
        "COMPAT_NOT_SUPPORTED_ON_DEVICE DEVICE_UNAVAILABLE INVALID_DEVICE NO_DEVICE NOT_INITIALIZED STUB_LIBRARY "
        "SYSTEM_DRIVER_MISMATCH SYSTEM_NOT_READY"
    ),
    GpuMemoryError: "OUT_OF_MEMORY",
    GpuHandleError: (
        "ALREADY_MAPPED INVALID_CONTEXT INVALID_HANDLE INVALID_VALUE MAP_FAILED NOT_FOUND NOT_MAPPED "
        "PEER_ACCESS_UNSUPPORTED UNMAP_FAILED"
    ),
    GpuLostError: (
        "ASSERT CONTAINED CONTEXT_IS_DESTROYED DEINITIALIZED ECC_UNCORRECTABLE EXTERNAL_DEVICE HARDWARE_STACK_ERROR "
        "ILLEGAL_ADDRESS ILLEGAL_INSTRUCTION INVALID_ADDRESS_SPACE INVALID_PC LAUNCH_FAILED LAUNCH_TIMEOUT "
        "MISALIGNED_ADDRESS MPS_CLIENT_TERMINATED NVLINK_UNCORRECTABLE UNKNOWN"
    ),
}
_KIND_OF = {f"CUDA_ERROR_{name}": kind for kind, names in _KINDS.items() for name in names.split()}


def gpu_error(reason: str, call: str, explanation: str = "") -> GpuError:
    """The error for a result of the driver, such as "CUDA_ERROR_OUT_OF_MEMORY", of the kind that it belongs to."""
    return _KIND_OF.get(reason, GpuError)(reason, call, explanation)


class Gpu(Protocol):
    """One GPU, as this process uses it. All methods raise GpuError. Any thread may call them."""

    def properties(self) -> GpuProperties:
        """The properties of the GPU, with the memory that is free now."""

    @property
    def stream(self) -> int:
        """The stream of the copies below, as frameworks and DLPack number streams."""

    def settle(self) -> None:
        """Return when all work of this process on the GPU is complete, also that of frameworks."""

    def order(self, stream: int) -> None:
        """Let later work of another stream of this process come behind all copies, and all waits, so far."""

    # Memory.

    def allocate(self, size: int) -> int:
        """A pointer to `size` bytes of new memory. Raises GpuMemoryError."""

    def free(self, pointer: int) -> None:
        """Free what `allocate` returned. No other process may have it open."""

    def export(self, pointer: int) -> bytes:
        """The handle, HANDLE_BYTES long, of what `allocate` returned. It is valid until that is freed."""

    def open(self, handle: bytes) -> int:
        """A pointer to the memory of another process. Raises GpuHandleError, also for a handle of this process.

        A handle may be opened again: it gives the same pointer, which must be closed as often.
        """

    def close(self, pointer: int) -> None:
        """Undo one `open`."""

    def size(self, pointer: int) -> int:
        """The size of the memory that `allocate` or `open` returned."""

    def native(self) -> NativeFunctions:
        """`allocate`, `free` and `settle` for native code."""

    # Copies.

    def write(self, pointer: int, contents: Any) -> None:
        """Copy a contiguous buffer to the GPU. Complete when it returns."""

    def read(self, pointer: int, target: Any) -> None:
        """Fill a contiguous writable buffer from the GPU. Complete when it returns."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy on the GPU, or from another GPU whose memory is open here. Ordered: see the module."""

    # Events, which order the work of processes.

    def create_event(self) -> int:
        """A new event, which other processes may open."""

    def record(self, event: int) -> None:
        """Let the event occur behind all copies so far."""

    def wait(self, event: int) -> None:
        """Let all later copies come behind the last `record` of the event, in whatever process that was."""

    def synchronize(self, event: int) -> None:
        """Return when the event has occurred."""

    def export_event(self, event: int) -> bytes:
        """The handle, HANDLE_BYTES long, of an event that `create_event` returned."""

    def open_event(self, handle: bytes) -> int:
        """The event of another process. Raises GpuHandleError."""

    def destroy_event(self, event: int) -> None:
        """Undo `create_event` or `open_event`."""
