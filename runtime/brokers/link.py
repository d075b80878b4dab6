# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The host's end of a broker: see broker.py. All methods belong to the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pyruntime.runtime.brokers.messages import PACKET_BYTES_MAX, Verb, decode_answer, encode_request
from pyruntime.runtime.regions import GpuHandle, GpuRegion, GrantedRegion, SharedRegion
from pyruntime.utils.errors import PeerError
from pyruntime.utils.gpu.driver import GpuLostError, GpuProperties
from pyruntime.utils.gpu.visible import VISIBLE

_LOG = logging.getLogger("pyruntime.brokers")

# How long a broker may take for its next answer, in seconds. A start takes seconds, and so does a copy of a whole GPU.
ANSWER_S_MAX = 60.0
# How long a server that exits waits for a broker, in seconds: it may be in a copy.
END_S_MAX = 5.0
# How long a killed broker may take to end, in seconds: the driver takes its context down.
KILLED_S_MAX = 5.0

# Named, because the host has no use for the code of a broker.
PROGRAM = "from pyruntime.runtime.brokers.broker import main; main()"


class BrokerLink:
    """The broker of `gpu`, which runs. `ready` resolves when it has its context, and fails with the GpuError why not.

    A broker that ends, or does not answer for ANSWER_S_MAX, fails what it owes with GpuLostError. What a caller waits
    for must not be cancelled: the broker copies nevertheless.
    """

    def __init__(self, gpu: GpuProperties) -> None:
        """Start the process. Raises OSError."""
        self.gpu = gpu
        self._loop = asyncio.get_running_loop()
        # Any: an answer is a number or a handle, by what was asked.
        self.ready: asyncio.Future[Any] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Any]] = {0: self.ready}
        self._serial = 0
        # Packets that the socket has no room for, each with a descriptor, or -1.
        self._outgoing: deque[tuple[bytes, int]] = deque()
        self._granted: set[SharedRegion] = set()
        self._opened: set[int] = set()
        # Memory of other brokers, with the number under which it is open, or being opened.
        self._peers: dict[GpuRegion, tuple[int, asyncio.Future[Any]]] = {}
        self._on_lost: list[Callable[[str], None]] = []
        # The brokers of other GPUs whose memory this one cannot open.
        self.unreachable: set[BrokerLink] = set()
        self.is_lost = False
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # -P: no module of the current folder takes the place of another.
                flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
                command = [sys.executable, *flags, "-c", PROGRAM, str(theirs.fileno()), f"GPU {gpu.ordinal}"]
                variables = {**os.environ, VISIBLE: gpu.uuid}
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env=variables, pass_fds=[theirs.fileno()]
                )
        except BaseException:
            self._sock.close()
            raise
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock.fileno(), self._on_readable)
        self._timer = self._loop.call_later(ANSWER_S_MAX, self._on_silence)

    def __repr__(self) -> str:
        return f"<BrokerLink of GPU {self.gpu.ordinal}, process {self._process.pid}>"

    def check(self) -> None:
        """Notice that the process has ended, if that is not read yet."""
        if not self.is_lost and self._process.poll() is not None:
            self._lost("it ended")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def loss(self, reason: str) -> GpuLostError:
        """The error of what the broker owed, or is asked for, when it was lost."""
        return GpuLostError("the broker was lost", "copy", f"the broker of GPU {self.gpu.ordinal} was lost: {reason}")

    def open(self, memory: GpuHandle) -> asyncio.Future[int]:
        """Open memory, unless it is open. Resolves to its size, in bytes."""
        self._opened.add(memory.number)
        answer = self._ask(Verb.OPEN, memory.number, memory.handle)
        answer.add_done_callback(partial(self._on_opened, memory.number))
        return answer

    def keep_open(self, memory: GpuHandle) -> None:
        """Open memory if another broker had it open. Later copies fail if that is not possible."""
        if memory.number not in self._opened:
            self.open(memory)

    def _on_opened(self, number: int, answer: asyncio.Future[int]) -> None:
        """The next copy opens the memory again if that has failed."""
        if not answer.cancelled() and answer.exception() is not None:
            self._opened.discard(number)

    def close_memory(self, memory: GpuHandle) -> asyncio.Future[int] | None:
        """Close memory: see `open`. Copies that were asked for before come first. None if it is not open.

        The result, which nobody need wait for, resolves when it is closed, and fails with the broker, which closes it.
        """
        if memory.number not in self._opened:
            return None
        self._opened.discard(memory.number)
        closed = self._ask(Verb.CLOSE, memory.number)
        closed.add_done_callback(lambda _: closed.cancelled() or closed.exception())
        return closed

    def read(self, memory: GpuHandle, at: int, size: int, region: SharedRegion, offset: int) -> asyncio.Future[int]:
        """Copy `size` bytes at `at` of the memory to the region. Raises OSError if there are no descriptors."""
        return self._copy(Verb.READ, memory, at, size, region, offset)

    def write(self, memory: GpuHandle, at: int, size: int, region: SharedRegion, offset: int) -> asyncio.Future[int]:
        """Copy `size` bytes of the region to the memory, at `at`. Raises OSError if there are no descriptors."""
        return self._copy(Verb.WRITE, memory, at, size, region, offset)

    # Memory of the broker's own, which stubs open. A copy from it, too, is one of `read` or `copy`.

    def when_lost(self, call_back: Callable[[str], None]) -> None:
        """Call back with a sentence when the broker is lost, or ended."""
        self._on_lost.append(call_back)

    def allocate(self, number: int, size: int) -> asyncio.Future[bytes]:
        """Allocate memory under a number. Resolves to its handle. Raises GpuMemoryError."""
        return self._ask(Verb.ALLOCATE, number, size)

    def free(self, number: int) -> None:
        """Free what `allocate` allocated. No process may have it open."""
        self._post(encode_request(0, Verb.FREE, number))

    def set_event(self, number: int, handle: bytes) -> asyncio.Future[int]:
        """Have later copies from this memory come behind an event, b"" for none."""
        return self._ask(Verb.EVENT, number, handle)

    def forget_event(self, number: int) -> None:
        """Have later copies from this memory come behind no event: the process that recorded it has ended."""
        if not self.is_lost:
            self._post(encode_request(0, Verb.EVENT, number, b""))

    def fetch(self, number: int, at: int, size: int, region: SharedRegion, offset: int) -> asyncio.Future[int]:
        """As `read`, from memory of the broker's own."""
        self._grant(region)
        return self._ask(Verb.READ, number, at, size, region.number, offset)

    def copy(self, number: int, at: int, size: int, target: GpuHandle, offset: int) -> asyncio.Future[int]:
        """Copy memory of the broker's own to memory of a client on the same GPU."""
        self.keep_open(target)
        return self._ask(Verb.COPY, number, at, size, target.number, offset)

    def complete(self, number: int) -> asyncio.Future[int]:
        """Resolves when all copies to memory of the broker's own, by the process that leases it, are complete."""
        return self._ask(Verb.COMPLETE, number)

    async def open_peer(self, region: GpuRegion, number: int) -> None:
        """Open memory of another broker under a number, unless it is open. Raises GpuError.

        It stays open until nobody counts on it.
        """
        if self.is_lost:  # since the caller has looked: nothing would say that it has closed the memory
            raise self.loss("it ended")
        if region in self._peers:
            _, opened = self._peers[region]
        else:
            opened = self._ask(Verb.OPEN, number, region.handle)
            self._peers[region] = number, opened
            region.holders.add(self)
            opened.add_done_callback(partial(self._on_peer_opened, region))
        await asyncio.shield(opened)  # others wait for it, too

    def _on_peer_opened(self, region: GpuRegion, opened: asyncio.Future[Any]) -> None:
        failed = opened.cancelled() or opened.exception() is not None
        if failed and self._peers.get(region, (0, None))[1] is opened:
            del self._peers[region]
            region.left(self)

    def copy_peer(self, source: int, at: int, size: int, target: int, offset: int) -> asyncio.Future[int]:
        """Copy to or from memory that `open_peer` has opened; all memory by its number."""
        return self._ask(Verb.COPY, source, at, size, target, offset)

    def revoke(self, region: GrantedRegion) -> None:
        """See regions.Holder."""
        if isinstance(region, GpuRegion):
            self._close_peer(region)
            return
        assert isinstance(region, SharedRegion)  # it is granted no other
        region.holders.discard(self)
        self._granted.discard(region)
        self._post(encode_request(0, Verb.REVOKE, region.number))

    def writer_ended(self, region: GpuRegion) -> None:
        """See regions.Holder. It opens no events of other GPUs."""

    def _close_peer(self, region: GpuRegion) -> None:
        if region in self._peers and not self.is_lost:  # otherwise its end closes the memory
            number, _ = self._peers.pop(region)
            closed = self._ask(Verb.CLOSE, number)
            closed.add_done_callback(partial(self._on_peer_closed, region))

    def _on_peer_closed(self, region: GpuRegion, closed: asyncio.Future[Any]) -> None:
        if not closed.cancelled():
            closed.exception()  # a broker that is lost has closed it, too
        region.left(self)

    async def end(self) -> None:
        """Let the broker end, and wait for that, END_S_MAX at most. What it owes fails."""
        self._hang_up()
        self._fail("the server ends")
        await asyncio.to_thread(self._wait, END_S_MAX)
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._wait, KILLED_S_MAX)

    def _copy(
        self, verb: Verb, memory: GpuHandle, at: int, size: int, region: SharedRegion, offset: int
    ) -> asyncio.Future[int]:
        self.keep_open(memory)
        self._grant(region)
        return self._ask(verb, memory.number, at, size, region.number, offset)

    def _grant(self, region: SharedRegion) -> None:
        if region not in self._granted and not self.is_lost:
            fd = os.dup(region.fileno())
            self._granted.add(region)
            region.holders.add(self)
            self._post(encode_request(0, Verb.GRANT, region.number), fd)

    def _ask(self, verb: Verb, *arguments: int | bytes) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.is_lost:  # since the caller has looked
            answer.set_exception(self.loss("it ended"))
            return answer
        self._serial += 1
        if not self._waiting:
            self._watch()
        self._waiting[self._serial] = answer
        self._post(encode_request(self._serial, verb, *arguments))
        return answer

    def _post(self, packet: bytes, fd: int = -1) -> None:
        """Send a packet, and a descriptor, which is closed afterwards."""
        self._outgoing.append((packet, fd))
        if len(self._outgoing) == 1:
            self._send()

    def _send(self) -> None:
        while self._outgoing and not self.is_lost:
            packet, fd = self._outgoing[0]
            try:
                socket.send_fds(self._sock, [packet], [fd] if fd >= 0 else [])
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._send)
                return
            except (BrokenPipeError, ConnectionResetError) as exc:
                _LOG.debug("%r: %s", self, exc)  # it has ended, which is about to be read
            except OSError as exc:  # a broker that lacks a packet does not do what the next ones rely on
                self._lost(f"a packet cannot be sent: {exc.strerror}")
                return
            self._outgoing.popleft()
            if fd >= 0:
                os.close(fd)
        if not self.is_lost:
            self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        try:
            while packet := self._sock.recv(PACKET_BYTES_MAX):
                self._answered(packet)
        except BlockingIOError:
            return
        except (ConnectionResetError, PeerError, GpuLostError) as exc:
            _LOG.debug("%r: %s", self, exc)
        self._lost("it ended")

    def _answered(self, packet: bytes) -> None:
        """Raises PeerError, and GpuLostError if the broker is about to end."""
        serial, error, result = decode_answer(packet)
        answer = self._waiting.pop(serial, None)
        if answer is None:
            raise PeerError("the broker of a GPU answered what nobody asked")
        self._watch()
        if answer.done():  # cancelled with the server's tasks
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
            if isinstance(error, GpuLostError):
                raise error

    def _watch(self) -> None:
        """Give the broker ANSWER_S_MAX from now on."""
        self._timer.cancel()
        self._timer = self._loop.call_later(ANSWER_S_MAX, self._on_silence)

    def _on_silence(self) -> None:
        if self._waiting:
            self._lost(f"it did not answer for {ANSWER_S_MAX:g} s")

    def _lost(self, reason: str) -> None:
        """Kill the broker. What it owes fails when it has ended: until then it may copy."""
        if self.ready.done() and self.ready.exception() is None:
            number = self.gpu.ordinal
            _LOG.warning("The broker of GPU %d was lost: %s. Another one is started when it is needed.", number, reason)
        self._hang_up()
        self._process.kill()
        if self._process.poll() is not None:
            self._fail(reason)
        else:
            ended = self._loop.run_in_executor(None, self._wait, KILLED_S_MAX)
            ended.add_done_callback(lambda _: self._fail(reason))

    def _wait(self, seconds: float) -> None:
        """Wait for the end of the process. A thread does that."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _hang_up(self) -> None:
        """The broker is no longer used."""
        self.is_lost = True
        self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for region in self._granted:
            region.holders.discard(self)
        for _, fd in self._outgoing:
            if fd >= 0:
                os.close(fd)
        self._outgoing.clear()

    def _fail(self, reason: str) -> None:
        """Fail what the broker owes. Its memory is gone. Those who wait go on after the callbacks."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(self.loss(reason))
                answer.exception()  # nobody may wait for it
        peers, self._peers = self._peers, {}
        for region in peers:
            region.left(self)
        callbacks, self._on_lost = self._on_lost, []
        for call_back in callbacks:
            try:
                call_back(self.loss(reason).explanation)
            except Exception:  # it is one of several
                _LOG.exception("The end of %r could not be handled.", self)
