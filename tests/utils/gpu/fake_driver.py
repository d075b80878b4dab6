# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A module with the functions of cuda.bindings.driver that pyruntime calls, over memory of this process.

The parameters have the names of the package, with which test_cuda.py compares them.
"""

import ctypes
import enum
from types import SimpleNamespace


class CUresult(enum.Enum):
    """Results, by the driver's numbers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_UNKNOWN = 999


class CUdevice_attribute(enum.Enum):
    """Attributes, by the driver's numbers."""

    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUpointer_attribute(enum.Enum):
    """Attributes of pointers, by the driver's numbers."""

    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9


class _Handle:
    def __init__(self):
        self._bytes = (ctypes.c_char * 64)()

    def getPtr(self):
        return ctypes.addressof(self._bytes)


class CUipcMemHandle(_Handle):
    """A handle of memory."""


class CUipcEventHandle(_Handle):
    """A handle of an event."""


class FakeDriver:
    """The module: `log` has the names of all calls, `fails` the result of those that shall fail."""

    CUresult = CUresult
    CUdevice_attribute = CUdevice_attribute
    CUpointer_attribute = CUpointer_attribute
    CUipcMemHandle = CUipcMemHandle
    CUipcEventHandle = CUipcEventHandle

    def __init__(self):
        self.log = []
        self.fails = {}
        self.contexts = []
        self._memory = {}

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if not name.startswith("cu") or name == "cuGetErrorString":
            return value

        def call(*arguments):
            self.log.append(name)
            if name in self.fails:
                return (CUresult[self.fails[name]],)
            if name not in BEFORE and not self.contexts:
                return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
            result = value(*arguments)
            return (CUresult.CUDA_SUCCESS, *(result if isinstance(result, tuple) else (result,)))

        return call

    def cuInit(self, Flags):
        return ()

    def cuGetErrorString(self, error):
        return CUresult.CUDA_SUCCESS, b"out of memory" if error is CUresult.CUDA_ERROR_OUT_OF_MEMORY else None

    def cuDeviceGetCount(self):
        return 2

    def cuDeviceGet(self, ordinal):
        return ordinal + 40

    def cuDeviceGetName(self, length, dev):
        return b"NVIDIA A100-SXM4-40GB".ljust(length, b"\0")

    def cuDeviceGetUuid(self, dev):
        return SimpleNamespace(bytes=bytes(range(16)))

    def cuDeviceGetAttribute(self, attrib, dev):
        return attrib.value - 67

    def cuDevicePrimaryCtxRetain(self, dev):
        return f"context of {dev}"

    def cuCtxPushCurrent(self, ctx):
        self.contexts.append(ctx)
        return ()

    def cuCtxPopCurrent(self):
        return self.contexts.pop()

    def cuCtxSynchronize(self):
        return ()

    def cuStreamCreate(self, Flags):
        return 0x7F0000001000

    def cuStreamSynchronize(self, hStream):
        return ()

    def cuMemGetInfo(self):
        return 30, 40

    def cuMemAlloc(self, bytesize):
        memory = ctypes.create_string_buffer(bytesize)
        pointer = ctypes.addressof(memory)
        self._memory[pointer] = memory
        return pointer

    def cuMemFree(self, dptr):
        del self._memory[dptr]
        return ()

    def cuMemGetAddressRange(self, dptr):
        return dptr, len(self._memory[dptr])

    def cuPointerGetAttribute(self, attribute, ptr):
        assert ptr in self._memory
        return 3

    def cuIpcGetMemHandle(self, dptr):
        handle = CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), dptr.to_bytes(8, "little"), 8)
        return handle

    def cuIpcOpenMemHandle(self, handle, Flags):
        assert (type(handle), Flags) == (CUipcMemHandle, 1)
        return int.from_bytes(ctypes.string_at(handle.getPtr(), 8), "little")

    def cuIpcCloseMemHandle(self, dptr):
        return ()

    def cuMemcpyHtoDAsync(self, dstDevice, srcHost, ByteCount, hStream):
        ctypes.memmove(dstDevice, srcHost, ByteCount)
        return ()

    def cuMemcpyDtoHAsync(self, dstHost, srcDevice, ByteCount, hStream):
        ctypes.memmove(dstHost, srcDevice, ByteCount)
        return ()

    def cuMemcpyAsync(self, dst, src, ByteCount, hStream):
        ctypes.memmove(dst, src, ByteCount)
        return ()

    def cuEventCreate(self, Flags):
        assert Flags in (2, 6)
        return 70 + Flags

    def cuEventRecord(self, hEvent, hStream):
        return ()

    def cuStreamWaitEvent(self, hStream, hEvent, Flags):
        return ()

    def cuEventSynchronize(self, hEvent):
        return ()

    def cuIpcGetEventHandle(self, event):
        return CUipcEventHandle()

    def cuIpcOpenEventHandle(self, handle):
        return 78

    def cuEventDestroy(self, hEvent):
        return ()


# What needs no current context.
BEFORE = {
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuPointerGetAttribute",
}
