# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of client shared memory: maps names to parts of shared-memory objects, and to memory on GPUs.

The object belongs to the client: any process with access may write, shrink, unlink or replace it at any time. So the
host keeps a descriptor and never maps the object, and gets its size for each request that refers to it. Stubs receive
the descriptor, and read and write the object themselves. The host copies only BYTES tensors, because it must validate
their elements, and they must not change between validation and use. Memory on GPUs is in cuda_regions.py.
"""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass

import posix_ipc

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.memory.cuda_regions import CudaRegion, open_cuda_region
from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import ClientContents, GpuContents, GpuPlace, InputTensor, OutputPlace
from pyruntime.utils.addresses import address
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.gpu.driver import HANDLE_BYTES
from pyruntime.utils.regions import REGION_BYTES_MAX

# The most registered names. Clients register some for each connection, and entries stay until a client removes them.
REGIONS_MAX = 4096
# Client objects may use 1 / DESCRIPTORS_SHARE of the descriptors of this process; connections and models need the rest.
DESCRIPTORS_SHARE = 2
# Triton reserves this prefix for its own regions. Ours have no names, but clients should stay compatible.
RESERVED_PREFIX = "triton_python_backend_shm_region_"
# BYTES are copied and validated like a request body, so they have the same limit: a client can create a sparse object
# of any size for free.
STRINGS_BYTES_MAX = 64 << 20
# The largest unsigned 64-bit integer, which Triton computes with.
OFFSET_MAX = (1 << 64) - 1

_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@dataclass(slots=True)
class Row:
    """A registered region: `byte_size` bytes at `offset` of the object that was under `key`.

    `is_leaving`: it is unregistered as soon as no request uses the object.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    memory: ClientRegion
    is_leaving: bool = False


class ClientMemory:
    """See the module. All methods belong to the event loop's thread, and raise InferenceError in Triton's words."""

    def __init__(
        self, allowed: bool, strings_bytes_max: int = STRINGS_BYTES_MAX, brokers: Brokers | None = None
    ) -> None:
        """`allowed` is --allow-client-shm. `strings_bytes_max` limits inputs of BYTES."""
        self._allowed = allowed
        self._strings_bytes_max = strings_bytes_max
        self._rows: dict[str, Row] = {}
        self.brokers = brokers or Brokers()
        self._cuda: dict[str, CudaRegion] = {}
        # The names of regions that are being opened, and of those that leave when no request uses them.
        self._opening: set[str] = set()
        self._leaving: set[str] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._objects_max = REGIONS_MAX if descriptors < 0 else min(REGIONS_MAX, descriptors // DESCRIPTORS_SHARE)

    # System shared memory.

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of the object under `key` as region `name`.

        UNSUPPORTED if that is not allowed, ALREADY_EXISTS for a name that is taken, INTERNAL if the object cannot be
        opened, INVALID_ARG if it has no such part, UNAVAILABLE if there are too many regions.
        """
        self._check_allowed()
        if not key.strip("/"):
            raise InferenceError(
                f"cannot register shared memory region '{name}' - invalid shm key '{key}'", Code.INVALID_ARG
            )
        if key.lstrip("/").startswith(RESERVED_PREFIX):
            raise InferenceError(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                f"prefix '{RESERVED_PREFIX}'",
                Code.INVALID_ARG,
            )
        self._check_new(name)
        memory = self._open(key)
        if offset < 0 or byte_size <= 0 or offset + byte_size > min(memory.size(), REGION_BYTES_MAX):
            self._drop(memory)
            raise InferenceError(f"failed to register shared memory region '{name}': invalid args", Code.INVALID_ARG)
        self._rows[name] = Row(name, key, offset, byte_size, memory)

    def unregister(self, name: str = "") -> Iterator[None]:
        """Remove a region, "" for all of them; an unknown name has no effect.

        They are no longer listed at once. Each part of the result closes the memory of one: all must be taken, and
        others may use the event loop in between. A region whose object requests use is removed when the last of them
        ends. Until then it is listed, and new requests may use it, as in Triton. UNSUPPORTED if client shared memory is
        not allowed.
        """
        self._check_allowed()
        removed = []
        for row in list(self._rows.values()) if not name else filter(None, [self._rows.get(name)]):
            if row.memory.is_used:
                row.is_leaving = True
            else:
                del self._rows[row.name]
                removed.append(row.memory)
        return map(self._drop, removed)

    def status(self, name: str = "") -> list[Row]:
        """One region, or all of them for "". NOT_FOUND if it does not exist."""
        if not name:
            return list(self._rows.values())
        if name not in self._rows:
            raise _not_found(name, "system", "CUDA", name in self._cuda)
        return [self._rows[name]]

    # CUDA shared memory.

    def register_cuda(
        self, name: str, raw_handle: bytes, device_id: int, byte_size: int
    ) -> Coroutine[object, object, None]:
        """Register `byte_size` bytes of a client's memory on a GPU as region `name`, when the result is awaited.

        UNSUPPORTED if that is not allowed, ALREADY_EXISTS for a name that is taken, UNAVAILABLE if there are too many
        regions. The result raises INVALID_ARG for a handle that cannot be opened, and for memory that has fewer bytes.
        """
        self._check_allowed()
        if not name and not raw_handle:  # over gRPC
            raise InferenceError("failed to register shared memory region '': invalid args", Code.INVALID_ARG)
        if len(raw_handle) != HANDLE_BYTES:
            raise InferenceError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t", Code.INVALID_ARG)
        self._check_new(name)
        self._opening.add(name)
        return self._open_cuda(name, raw_handle, device_id, byte_size)

    async def _open_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        try:
            region = await open_cuda_region(self.brokers, name, raw_handle, device_id, byte_size, self._cuda_unused)
            self._cuda[name] = region
        finally:
            self._opening.discard(name)

    def unregister_cuda(self, name: str = "") -> Coroutine[object, object, None]:
        """As `unregister`, for regions on GPUs. When the result is awaited, those that are removed are closed.

        So a client may free the memory then. If that takes longer than CLOSE_S_MAX, the log says so.
        """
        self._check_allowed()
        removed: list[CudaRegion] = []
        for region in list(self._cuda.values()):
            if name in ("", region.name):
                if region.is_used:
                    self._leaving.add(region.name)
                else:
                    self._remove_cuda(region)
                    removed.append(region)
        return _wait_closed(removed)

    def status_cuda(self, name: str = "") -> list[CudaRegion]:
        """One region, or all of them for "". NOT_FOUND if it does not exist."""
        if not name:
            return list(self._cuda.values())
        if name not in self._cuda:
            raise _not_found(name, "cuda", "system", name in self._rows)
        return [self._cuda[name]]

    async def close(self) -> None:
        """End the brokers of GPUs."""
        await self.brokers.close()

    def _cuda_unused(self, region: CudaRegion) -> None:
        """The last request that used this region has ended."""
        if region.name in self._leaving:
            self._remove_cuda(region)

    def _remove_cuda(self, region: CudaRegion) -> None:
        self._leaving.discard(region.name)
        del self._cuda[region.name]
        region.close()

    # Tensors of requests.

    def input(
        self, name: str, datatype: str, shape: list[int], region: str, offset: int, byte_size: int
    ) -> InputTensor:
        """An input that lies in a region.

        NOT_FOUND if that is not there; INVALID_ARG if it has no such part, or if they are more strings than it takes.
        """
        if region in self._cuda:
            contents = self._locate_cuda(region, offset, byte_size)
            if datatype == "BYTES":
                self._check_strings(name, byte_size)
            return InputTensor(name, datatype, shape, b"", gpu=contents)
        memory, at = self._locate(region, offset, byte_size)
        if datatype == "BYTES":
            self._check_strings(name, byte_size)
            return InputTensor(name, datatype, shape, memory.read(at, byte_size))
        where = address(memory.number, at)
        return InputTensor(name, datatype, shape, b"", where, ClientContents(memory, where, byte_size))

    def output(self, region: str, offset: int, byte_size: int) -> OutputPlace | GpuPlace:
        """The place for an output in a region. NOT_FOUND, or INVALID_ARG if the region has no such part."""
        if region in self._cuda:
            return GpuPlace(region, offset, byte_size, self._locate_cuda(region, offset, byte_size))
        memory, at = self._locate(region, offset, byte_size)
        return OutputPlace(region, offset, byte_size, ClientContents(memory, address(memory.number, at), byte_size))

    def _locate(self, region: str, offset: int, byte_size: int) -> tuple[ClientRegion, int]:
        """The object of a region, and the offset of a part of the region in it."""
        row = self._rows.get(region)
        if row is None:
            self._check_allowed()
            raise InferenceError(f"Unable to find shared memory region: '{region}'", Code.NOT_FOUND)
        _check_part(region, row.byte_size, offset, byte_size)
        at = row.offset + offset
        if at + byte_size > row.memory.size():  # the client may have shrunk the object since it registered it
            raise _no_such_part(region)
        return row.memory, at

    def _locate_cuda(self, region: str, offset: int, byte_size: int) -> GpuContents:
        row = self._cuda[region]
        _check_part(region, row.byte_size, offset, byte_size)
        return GpuContents(row, offset, byte_size)

    def _check_strings(self, name: str, byte_size: int) -> None:
        if byte_size > self._strings_bytes_max:
            raise InferenceError(
                f"input '{name}' has {byte_size} bytes of strings, expected at most {self._strings_bytes_max}",
                Code.INVALID_ARG,
            )

    def _unused(self, memory: ClientRegion) -> None:
        """The last request that used this object has ended."""
        for row in list(self._rows.values()):
            if row.memory is memory and row.is_leaving:
                self._remove(row)

    def _remove(self, row: Row) -> None:
        if self._rows.pop(row.name, None) is not None:  # otherwise the removal of another name has done it
            self._drop(row.memory)

    def _drop(self, memory: ClientRegion) -> None:
        """A name no longer counts on an object."""
        memory.names -= 1
        memory.close()

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise InferenceError(_DISABLED, Code.UNSUPPORTED)

    def _check_new(self, name: str) -> None:
        if name in self._rows or name in self._cuda or name in self._opening:
            raise InferenceError(f"shared memory region '{name}' already in manager", Code.ALREADY_EXISTS)
        if len(self._rows) + len(self._cuda) + len(self._opening) >= REGIONS_MAX:
            raise InferenceError(f"more than {REGIONS_MAX} shared memory regions are registered", Code.UNAVAILABLE)

    def _open(self, key: str) -> ClientRegion:
        """The object under `key`, which the caller must close; an already open one if it is the same object."""
        try:
            if "\0" in key:  # posix_ipc would crash
                raise ValueError("a key with a null character")
            fd: int = posix_ipc.SharedMemory(key).fd
        except (OSError, ValueError, posix_ipc.Error):
            raise InferenceError(f"Unable to open shared memory region: '{key}'") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InferenceError(f"Unable to open shared memory region: '{key}'")
        memory = ClientRegion(fd, self._unused)
        memory.names = 1
        others = {row.memory.identity: row.memory for row in self._rows.values()}
        known = others.get(memory.identity)
        if known is not None:
            self._drop(memory)
            known.count_on()
            known.names += 1
            return known
        if len(others) >= self._objects_max:
            self._drop(memory)
            raise InferenceError(
                f"more than {self._objects_max} shared memory objects are registered", Code.UNAVAILABLE
            )
        return memory


async def _wait_closed(regions: Sequence[CudaRegion]) -> None:
    await asyncio.gather(*(region.wait_closed() for region in regions))


def _check_part(region: str, region_size: int, offset: int, byte_size: int) -> None:
    """Raise InferenceError unless a region of `region_size` bytes has these."""
    if not 0 <= offset < region_size:
        raise InferenceError(f"Invalid offset for shared memory region: '{region}'", Code.INVALID_ARG)
    if offset + byte_size > OFFSET_MAX:
        raise InferenceError(
            f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
            f"({OFFSET_MAX}) for region '{region}'",
            Code.INVALID_ARG,
        )
    if not 0 < byte_size <= region_size - offset:
        raise _no_such_part(region)


def _no_such_part(region: str) -> InferenceError:
    return InferenceError(f"Invalid offset + byte size for shared memory region: '{region}'", Code.INVALID_ARG)


def _not_found(name: str, kind: str, other: str, is_other: bool) -> InferenceError:
    if is_other:
        wanted = "CUDA" if kind == "cuda" else kind
        message = f"The region named '{name}' is registered as {other} shared memory, not {wanted} shared memory"
    else:
        message = f"Unable to find {kind} shared memory region: '{name}'"
    return InferenceError(message, Code.NOT_FOUND)
