# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The broker of one GPU: the process that owns memory there which stubs share, and opens the memory of clients.

It copies between all of it and main memory, and memory of brokers of other GPUs. It sees its own GPU only, as
CUDA opens a handle also in a context on another GPU, if that has access to the memory. It has the only context of the
server on its GPU, and ends when the host's end of its socket is closed. If the GPU fails in this process it ends, and
the host starts another one. messages.py has what it says.
"""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

import setproctitle

from pyruntime.runtime.brokers.messages import PACKET_BYTES_MAX, Request, Verb, decode_request, encode_answer
from pyruntime.utils.gpu.driver import Gpu, GpuError, GpuHandleError, GpuLostError, gpu_error
from pyruntime.utils.gpu.inventory import open_gpu
from pyruntime.utils.regions import Region

# They are meant for the host, which decides what follows.
_SHARED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main() -> None:
    """Serve until the host has ended. The arguments are the descriptor of the socket, and the name of the GPU."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    setproctitle.setproctitle(f"pyruntime broker of {sys.argv[2]}")
    for signum in _SHARED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    try:
        gpu = open_gpu()
    except GpuError as exc:
        sock.send(encode_answer(0, exc))
        return
    sock.send(encode_answer(0))
    _Broker(sock, gpu).serve()


class _Broker:
    """See the module."""

    def __init__(self, sock: socket.socket, gpu: Gpu) -> None:
        self._sock = sock
        self._gpu = gpu
        self._regions: dict[int, Region] = {}
        self._pointers: dict[int, int] = {}
        # The events behind which copies from memory come, opened, by the number of the memory.
        self._events: dict[int, int] = {}

    def serve(self) -> None:
        """Handle packets until the host has ended, or the GPU is lost."""
        with suppress(BrokenPipeError, ConnectionResetError):  # the host has ended
            while self._serve_one():
                pass

    def _serve_one(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return False
        request = decode_request(packet)
        error: GpuError | None = None
        result: int | bytes = 0
        try:
            result = self._handle(request, fds)
        except GpuError as exc:
            error = exc
        if request.serial:
            self._sock.send(encode_answer(request.serial, error, result))
        return not isinstance(error, GpuLostError)

    def _handle(self, request: Request, fds: list[int]) -> int | bytes:
        verb, arguments = request.verb, request.arguments
        if verb is Verb.GRANT:
            self._regions[arguments[0]] = Region(fds[0])
        elif verb is Verb.REVOKE:
            self._regions.pop(arguments[0]).close()
        elif verb is Verb.OPEN:
            number, handle = arguments
            if number not in self._pointers:
                self._pointers[number] = self._gpu.open(handle)
            return self._gpu.size(self._pointers[number])
        elif verb is Verb.CLOSE:
            pointer = self._pointers.pop(arguments[0], None)
            if pointer is not None:  # otherwise it was never opened
                self._gpu.close(pointer)
        elif verb is Verb.ALLOCATE:
            number, size = arguments
            self._pointers[number] = pointer = self._gpu.allocate(size)
            return self._gpu.export(pointer)
        elif verb is Verb.FREE:
            try:
                self._set_event(arguments[0], b"")
            finally:
                self._gpu.free(self._pointers.pop(arguments[0]))
        elif verb is Verb.EVENT:
            self._set_event(*arguments)
        elif verb is Verb.COPY:
            self._copy_on_gpu(*arguments)
        elif verb is Verb.COMPLETE:
            self._complete(arguments[0])
        else:
            self._copy(verb, *arguments)
        return 0

    def _copy(self, verb: Verb, memory: int, at: int, size: int, region: int, offset: int) -> None:
        pointer = self._pointer(memory)
        with self._regions[region].view[offset : offset + size] as contents:
            if verb is Verb.READ:
                self._gpu.read(pointer + at, contents)
            else:
                self._gpu.write(pointer + at, contents)

    def _copy_on_gpu(self, memory: int, at: int, size: int, target: int, offset: int) -> None:
        self._gpu.copy(self._pointer(target) + offset, self._pointer(memory) + at, size)
        self._gpu.settle()  # those who read it as soon as they have the answer have no event of ours

    def _complete(self, memory: int) -> None:
        if memory in self._events:
            with suppress(GpuHandleError):  # see _pointer
                self._gpu.synchronize(self._events[memory])

    def _pointer(self, memory: int) -> int:
        """The pointer to memory, behind whose event all later copies come."""
        if memory not in self._pointers:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", "copy", "the memory could not be opened")
        if memory in self._events:
            with suppress(GpuHandleError):  # its process has ended, copies nothing any more, and the host knows it soon
                self._gpu.wait(self._events[memory])
        return self._pointers[memory]

    def _set_event(self, memory: int, handle: bytes) -> None:
        event = self._events.pop(memory, None)
        if event is not None:
            with suppress(GpuHandleError):  # its process may have ended
                self._gpu.destroy_event(event)
        if handle:
            self._events[memory] = self._gpu.open_event(handle)
