# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A small framework on a GPU of the stand-in, with which models of tests begin: arrays that DLPack knows.

Like those of real frameworks, results are not there before somebody waits for them, or orders a stream behind them.
"""

import numpy as np

from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.pb_utils import dlpack

# The framework's own stream.
STREAM = 7
# The GPU of new arrays: see `use`.
current = [0]
NAMES = {np.dtype(np.int64): "INT64", np.dtype(np.float32): "FP32"}


class Array:
    """An array in memory of its own."""

    def __init__(self, contents, gpu=None):
        gpu = current[0] if gpu is None else gpu
        self.gpu = gpu_of(gpu)
        self.device = gpu
        self.shape, self.dtype = contents.shape, contents.dtype
        self.pointer = self.allocate(max(contents.nbytes, 1))
        self._pending = contents.tobytes()
        self.gpu.enqueue(self.complete)

    def complete(self):
        pending, self._pending = self._pending, b""
        if pending:
            self.gpu.write_by(self.pointer, pending)

    def allocate(self, size):
        return self.gpu.allocate(size)

    def free(self):
        self.gpu.free(self.pointer)

    def __del__(self):
        self._pending = b""
        self.free()

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        if stream != -1:
            self.complete()
        return dlpack.to_capsule(self, self.pointer, self.shape, NAMES[self.dtype], self.device)

    def read(self):
        self.complete()
        return read(self.gpu, self.pointer, self.shape, self.dtype)


class Taken:
    """An array over memory of somebody else."""

    def __init__(self, tensor):
        self.imported = dlpack.from_capsule(tensor.__dlpack__(stream=STREAM, max_version=(1, 0)))
        assert self.imported.gpu is not None
        self.shape = self.imported.shape

    def __dlpack_device__(self):
        return (2, self.imported.gpu)

    def __dlpack__(self, stream=None):
        taken = self.imported
        return dlpack.to_capsule(taken.owner, taken.pointer, taken.shape, taken.datatype, taken.gpu)

    def read(self):
        (dtype,) = [dtype for dtype, name in NAMES.items() if name == self.imported.datatype]
        return read(gpu_of(self.imported.gpu), self.imported.pointer, self.shape, dtype)


def read(gpu, pointer, shape, dtype):
    contents = np.empty(shape, dtype)
    gpu.read_by(STREAM, pointer, contents.reshape(-1).view(np.uint8))
    return contents


# What models of all frameworks use.
make = Array
take = Taken


def use(gpu):
    """Have all new arrays on the GPU with this number in this process."""
    current[0] = gpu


def times(array, factor):
    return Array(array.read() * factor)


def back(array):
    return array.read()
