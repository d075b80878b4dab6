# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU, and the stream that copies are made on, by the package cuda-python."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.utils.errors import LoadError


class Device:
    """See the module. Buffers have names, and grow as they are needed; they are freed with the process."""

    def __init__(self, number: int, model: str) -> None:
        """Use this GPU in the current thread. Raises LoadError."""
        self._cuda = import_framework("cuda.bindings.runtime", "cuda-python", "tensorrt", model)
        self._number = number
        self._buffers: Dict[str, Tuple[int, int]] = {}
        try:
            self.use()
            self.stream: int = int(self._checked(self._cuda.cudaStreamCreate()))
        except RuntimeError as exc:
            raise LoadError(f"model '{model}' cannot use the GPU {number}: {exc}") from exc

    def use(self) -> None:
        """Make this GPU that of the current thread. Raises RuntimeError."""
        self._checked(self._cuda.cudaSetDevice(self._number))

    def buffer(self, name: str, nbytes: int) -> int:
        """The address of a buffer with at least so many bytes; its contents may be lost. Raises RuntimeError."""
        address, size = self._buffers.get(name, (0, 0))
        if size < nbytes or not address:
            if address:
                del self._buffers[name]
                self._checked(self._cuda.cudaFree(address))
            address = int(self._checked(self._cuda.cudaMalloc(max(1, nbytes))))
            self._buffers[name] = address, nbytes
        return address

    def upload(self, address: int, array: Any) -> None:
        """Copy an array, which must be contiguous and live until `wait`, to the GPU. Raises RuntimeError."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._checked(self._cuda.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self.stream))

    def download(self, array: Any, address: int) -> None:
        """Fill an array, which must be contiguous, from the GPU; it is complete after `wait`. Raises RuntimeError."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._checked(self._cuda.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self.stream))

    def wait(self) -> None:
        """Wait until the stream has done everything. Raises RuntimeError."""
        self._checked(self._cuda.cudaStreamSynchronize(self.stream))

    def _checked(self, results: Tuple[Any, ...]) -> Any:
        """The value of a call, which returns its status first; None if it has none. Raises RuntimeError."""
        status, *values = results
        if status != self._cuda.cudaError_t.cudaSuccess:
            raise RuntimeError(f"CUDA error {int(status)}: {getattr(status, 'name', '')}")
        return values[0] if values else None
