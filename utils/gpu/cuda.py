# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A GPU through NVIDIA's driver, by the package cuda-bindings. See `Gpu` for the methods.

The context is the device's primary one, which frameworks use as well: a process pays for it once. It is current only
during a call, so that the context of a framework stays current for the framework.
"""

from __future__ import annotations

import ctypes
import importlib
import uuid
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np

from pyruntime.utils.gpu.driver import (
    HANDLE_BYTES,
    GpuError,
    GpuHandleError,
    GpuLostError,
    GpuMissingError,
    GpuProperties,
    gpu_error,
)
from pyruntime.utils.gpu.native import NativeFunctions, of_driver

_PACKAGE = "cuda.bindings.driver"
_NAME_BYTES = 256
# CU_STREAM_NON_BLOCKING: our copies do not wait for the work of frameworks, except by events.
_NON_BLOCKING = 1
# CU_EVENT_DISABLE_TIMING, and with CU_EVENT_INTERPROCESS.
_NO_TIMING = 2
_EVENT_FLAGS = 2 | 4
# CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is.
_LAZY_PEERS = 1
# The driver's name for a failure that it cannot tell.
_UNKNOWN = "CUDA_ERROR_UNKNOWN"


class CudaGpu:
    """See the module."""

    def __init__(self, ordinal: int = 0) -> None:
        """Raises GpuMissingError without the package, the driver or the GPU, and GpuMemoryError without a context."""
        self._cuda = _driver()
        self._ordinal = ordinal
        self._device = self._call("cuDeviceGet", ordinal)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        with self._current():
            self._stream = self._call("cuStreamCreate", _NON_BLOCKING)
            self._here = self._call("cuEventCreate", _NO_TIMING)

    # Properties.

    def properties(self) -> GpuProperties:
        name, id, is_slice = _identity(self._cuda, self._device)
        attributes = self._cuda.CUdevice_attribute
        major = self._call(
            "cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device
        )
        minor = self._call(
            "cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device
        )
        with self._current():
            free, total = self._call("cuMemGetInfo")
        return GpuProperties(self._ordinal, id, name, (major, minor), total, free, is_slice)

    @property
    def stream(self) -> int:
        return int(self._stream)

    def settle(self) -> None:
        with self._current():
            self._call("cuCtxSynchronize")

    def order(self, stream: int) -> None:
        with self._current():
            self._call("cuEventRecord", self._here, self._stream)
            self._call("cuStreamWaitEvent", stream, self._here, 0)

    # Memory.

    def allocate(self, size: int) -> int:
        with self._current():
            return int(self._call("cuMemAlloc", size))

    def free(self, pointer: int) -> None:
        with self._current():
            self._call("cuMemFree", pointer)

    def export(self, pointer: int) -> bytes:
        with self._current():
            return _bytes_of(self._call("cuIpcGetMemHandle", pointer))

    def open(self, handle: bytes) -> int:
        with self._current():
            try:
                return int(self._call("cuIpcOpenMemHandle", self._handle("CUipcMemHandle", handle), _LAZY_PEERS))
            except GpuLostError as exc:
                if exc.reason != _UNKNOWN:
                    raise
                # A client may have made the handle up. If the GPU is lost indeed, the next call says so.
                raise GpuHandleError(exc.reason, exc.call, exc.explanation) from exc

    def close(self, pointer: int) -> None:
        with self._current():
            self._call("cuIpcCloseMemHandle", pointer)

    def size(self, pointer: int) -> int:
        with self._current():
            start, size = self._call("cuMemGetAddressRange", pointer)
        # The driver divides its allocations, and a handle may lead into one.
        return int(start) + int(size) - pointer

    def native(self) -> NativeFunctions:
        return of_driver(int(self._context))

    # Copies.

    def write(self, pointer: int, contents: Any) -> None:
        source, size = _address_of(contents)
        if size:
            with self._current():
                self._call("cuMemcpyHtoDAsync", pointer, source, size, self._stream)
                self._call("cuStreamSynchronize", self._stream)

    def read(self, pointer: int, target: Any) -> None:
        filled, size = _address_of(target)
        if size:
            with self._current():
                self._call("cuMemcpyDtoHAsync", filled, pointer, size, self._stream)
                self._call("cuStreamSynchronize", self._stream)

    def copy(self, target: int, source: int, size: int) -> None:
        with self._current():
            self._call("cuMemcpyAsync", target, source, size, self._stream)

    # Events.

    def create_event(self) -> int:
        with self._current():
            return int(self._call("cuEventCreate", _EVENT_FLAGS))

    def record(self, event: int) -> None:
        with self._current():
            self._call("cuEventRecord", event, self._stream)

    def wait(self, event: int) -> None:
        with self._current():
            self._call("cuStreamWaitEvent", self._stream, event, 0)

    def synchronize(self, event: int) -> None:
        with self._current():
            self._call("cuEventSynchronize", event)

    def export_event(self, event: int) -> bytes:
        with self._current():
            return _bytes_of(self._call("cuIpcGetEventHandle", event))

    def open_event(self, handle: bytes) -> int:
        with self._current():
            return int(self._call("cuIpcOpenEventHandle", self._handle("CUipcEventHandle", handle)))

    def destroy_event(self, event: int) -> None:
        with self._current():
            self._call("cuEventDestroy", event)

    # The driver.

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def _call(self, function: str, *arguments: Any) -> Any:
        return _call(self._cuda, function, *arguments)

    def _handle(self, kind: str, handle: bytes) -> Any:
        if len(handle) != HANDLE_BYTES:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", "open", "invalid resource handle")
        made = getattr(self._cuda, kind)()
        ctypes.memmove(made.getPtr(), handle, HANDLE_BYTES)
        return made


def seen() -> Optional[List[str]]:
    """See inventory.py. Initializes nothing."""
    try:
        driver = importlib.import_module(_PACKAGE)
        count = _call(driver, "cuDeviceGetCount")
    except (ImportError, RuntimeError, GpuError):  # no package; no driver; CUDA is not initialized
        return None
    return [_identity(driver, _call(driver, "cuDeviceGet", ordinal))[1] for ordinal in range(count)]


def device_of(pointer: int) -> int:
    """See inventory.py. All memory of a process has addresses of its own, so that no context of a GPU is needed."""
    driver = _driver()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(_call(driver, "cuPointerGetAttribute", attribute, pointer))


def _driver() -> Any:
    """The package, with a driver that can be called. Raises GpuMissingError without one of them."""
    try:
        driver = importlib.import_module(_PACKAGE)
    except ImportError as exc:
        raise GpuMissingError("the package is missing", "import", "install pyruntime[cuda] to use GPUs") from exc
    try:
        _call(driver, "cuInit", 0)
    except RuntimeError as exc:  # the package finds no driver
        raise GpuMissingError("CUDA_ERROR_NOT_INITIALIZED", "cuInit", str(exc)) from exc
    return driver


def _identity(driver: Any, device: Any) -> Tuple[str, str, bool]:
    """The name and the UUID of a device, and whether it is a slice."""
    name = _call(driver, "cuDeviceGetName", _NAME_BYTES, device).split(b"\0")[0].decode(errors="replace")
    is_slice = " MIG " in name  # the driver has no other sign of it
    # The second version knows slices. It is the only one in newer packages, without this ending of its name.
    get_uuid = "cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    id = uuid.UUID(bytes=bytes(_call(driver, get_uuid, device).bytes))
    return name, f"{'MIG' if is_slice else 'GPU'}-{id}", is_slice


def _call(driver: Any, function: str, *arguments: Any) -> Any:
    """The result of a function of the driver; a tuple if it has several. Raises GpuError."""
    status, *values = getattr(driver, function)(*arguments)
    if status.name != "CUDA_SUCCESS":
        _, explanation = driver.cuGetErrorString(status)
        raise gpu_error(status.name, function, explanation.decode() if explanation else "")
    return values[0] if len(values) == 1 else tuple(values)


def _bytes_of(handle: Any) -> bytes:
    return ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


def _address_of(buffer: Any) -> Tuple[int, int]:
    """The address and the size of a contiguous buffer. The caller keeps the buffer alive."""
    view = memoryview(buffer)
    if not view.nbytes:
        return 0, 0
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]), view.nbytes
