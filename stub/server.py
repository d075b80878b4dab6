# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implements the interface of host.py in a stub, by messages to the host."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from pyruntime.stub import gpus
from pyruntime.stub.backlog import BYTES_KEPT_MAX, RESPONSES_KEPT_MAX, Backlog, Kept
from pyruntime.stub.calls import Calls
from pyruntime.stub.client_memory import ClientOutputs
from pyruntime.stub.gpus import settle
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.link import Link
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.errors import Code, InferenceError, LocalError, PyruntimeError
from pyruntime.utils.flow_control import FlowControl
from pyruntime.utils.messages import (
    OK,
    REPORT_DROPPED,
    REPORT_MEMORY,
    TENSORS,
    Ask,
    Measure,
    Reply,
    Respond,
    WireResponse,
    encode_error,
)
from pyruntime.utils.regions import Region

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.stub.memory import Regions


# The names of dropped outputs that the host is told, and the characters of each: a model may make up names.
DROPPED_MAX = 64
DROPPED_CHARS_MAX = 1000


# What a client reads at the end of a request whose responses it has not taken.
FULL = (
    f"the client does not take its responses: {RESPONSES_KEPT_MAX} of them, or {BYTES_KEPT_MAX >> 20} MiB, wait for it"
)


class Server(Host):
    """The server of the model in this stub.

    `waiting_batch` returns the batch that waits if this thread does, 0 if there is none, and gives those behind it back
    to the host. `started_ns` returns when execute was called for a request, 0 once the host knows that.
    """

    def __init__(
        self,
        link: Link,
        calls: Calls,
        writer: ResponseWriter,
        flags: Region,
        waiting_batch: Callable[[], int],
        on_final: Callable[[], None],
        started_ns: Callable[[int], int],
    ) -> None:
        self._link = link
        self._calls = calls
        self._writer = writer
        self._flags = flags
        self._waiting_batch = waiting_batch
        self._on_final = on_final
        self._started_ns = started_ns
        # The number of the model's GPU in this process, None if it is on none; and the memory of the process.
        # The UUID of the model's GPU, if it is on one.
        self.on_gpu: Optional[Tuple[str, Regions]] = None
        self._flow = FlowControl()
        self._backlog = Backlog()
        # The requests whose backlog a thread sends now; those that ended because it was full; and who waits for room.
        self._sending: Set[int] = set()
        self._cut: Set[int] = set()
        self._awaiting: Dict[int, List[Callable[[], None]]] = {}
        # The batch whose execute waits for room, 0 if none does.
        self.held = 0
        self._lock = threading.RLock()
        self._sent = threading.Condition(self._lock)
        self._dropped: Set[str] = set()
        self._questions = 0
        self._replies: Dict[int, Optional[Reply]] = {}

    # Answering requests.

    def respond(self, serial: int, response: Optional[InferenceResponse], wanted: Set[str], final: bool) -> None:
        """See Host."""
        if self._link.closed:
            return  # the host has ended; or this is a child that the model forked, and the memory is its parent's
        if serial in self._cut:
            if final:
                self._cut.discard(serial)
                self._on_final()
            return
        wire = None if response is None else self._writer.write(response, wanted)
        if final and gpus.unsettled:
            settle()
        if final and type(wanted) is ClientOutputs:
            wanted.memory.keep()
        size = 0 if wire is None else sum(size for _, _, _, _, size, _, _ in wire[TENSORS])
        with self._lock:
            is_kept = self._keep(serial, Kept(wire, size, final))
            if not is_kept:
                self._count(serial, wire, size, final)
        if not is_kept:
            self._post(serial, wire, final)
        elif serial in self._cut:  # without the lock, as in _send_kept: the log is sent, too
            LOGGER.warning("a request ends: %s", FULL)
        if final:
            self._on_final()

    def _count(self, serial: int, wire: Optional[WireResponse], size: int, final: bool) -> None:
        """What follows is sent. The caller has the lock."""
        if final:
            self._flow.end(serial)
        elif wire is not None:
            self._flow.sent(serial, size)

    def _keep(self, serial: int, kept: Kept) -> bool:
        """Keep a response back if its client has no room, or has not got an earlier one. The caller has the lock."""
        backlog = self._backlog
        if serial not in backlog and (kept.final or kept.response is None or self._flow.may_send(serial)):
            return False
        if not kept.final and backlog.is_full(serial):
            if kept.response is not None:
                self._writer.drop(kept.response)
            self._cut.add(serial)
            kept = Kept(encode_error(Code.UNAVAILABLE, FULL), 0, True)
        backlog.add(serial, kept)
        return True

    def _send_kept(self, serial: int) -> None:
        """Send what is kept for a request while its client has room."""
        with self._lock:
            if serial in self._sending or serial not in self._backlog:
                return
            self._sending.add(serial)
        while True:
            with self._lock:
                kept = self._backlog.first(serial)
                if kept is None or not (kept.final or self._flow.may_send(serial)):
                    if kept is None:
                        self._backlog.remove(serial)
                    self._sending.discard(serial)
                    self._sent.notify_all()
                    return
                self._backlog.take(serial)
                self._count(serial, *kept)
            # Without the lock: a destructor that needs it may run in a thread that sends.
            self._post(serial, kept.response, kept.final)

    def _post(self, serial: int, wire: Optional[WireResponse], final: bool) -> None:
        start_ns = self._started_ns(serial) if final else 0
        try:
            self._link.send(Respond(serial, wire, final, start_ns))
        except PyruntimeError as exc:  # the response has more text than fits into a frame
            if wire is not None:
                self._writer.drop(wire)
            error = encode_error(Code.INTERNAL, f"a response cannot be sent: {exc}")
            with contextlib.suppress(LocalError):  # the stub has just sent Stopped; the host frees everything then
                self._link.send(Respond(serial, error, final, start_ns))

    def drop(self, name: str) -> None:
        """The model has returned an output that its configuration does not declare: the host logs that, once."""
        # A message has no text that UTF-8 cannot encode.
        name = name[:DROPPED_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
        if name not in self._dropped and len(self._dropped) < DROPPED_MAX:
            self._dropped.add(name)
            self.tell(REPORT_DROPPED, [name])

    def wait_for_room(self, serial: int) -> None:
        """See Host."""
        if self.has_room(serial) or asyncio._get_running_loop() is not None:
            return  # the response of a coroutine is kept back
        batch = self._waiting_batch()
        try:
            if batch:
                self.held = batch
                self._waiting_batch()  # returns what another thread has read before it could see that
            self._link.wait(lambda: self.has_room(serial))
        finally:
            if batch:
                self.held = 0

    def has_room(self, serial: int) -> bool:
        """See Host."""
        return self._flow.may_send(serial) and serial not in self._backlog

    def when_room(self, serial: int, wake: Callable[[], None]) -> None:
        """See Host."""
        with self._lock:
            if not self.has_room(serial) and serial not in self._cut:
                self._awaiting.setdefault(serial, []).append(wake)
                return
        wake()

    def ended(self, serial: int) -> None:
        """See Host."""
        with self._lock:
            while serial in self._sending:  # the host is not to get a response after this
                self._sent.wait()
            for kept in self._backlog.remove(serial):
                if kept.response is not None:
                    self._writer.drop(kept.response)
            self._flow.end(serial)
            self._cut.discard(serial)
        self._tell_room(serial)
        self._link.wake()  # a thread may wait for room

    def credit(self, streams: List[List[int]]) -> None:
        """Clients have received responses: `[serial, count]` pairs."""
        with self._lock:
            for serial, count in streams:
                self._flow.credit(serial, count)
        for serial, _ in streams:
            if serial in self._backlog:
                self._send_kept(serial)
            if serial in self._awaiting:
                self._tell_room(serial)

    def _tell_room(self, serial: int) -> None:
        """Call those who wait until a request has room, if it has."""
        with self._lock:
            waiting = self._awaiting.pop(serial, []) if self.has_room(serial) or serial in self._cut else []
        for wake in waiting:
            wake()

    def is_cancelled(self, serial: int) -> bool:
        """See Host."""
        return self._flags.flag(serial) != 0 or serial in self._cut

    def forgotten(self, serial: int, warning: str) -> None:
        """See Host."""
        LOGGER.warning("%s", warning)

    # Other models, and the server itself.

    def call(self, request: InferenceRequest, decoupled: bool) -> Answers:
        """See Host."""
        return self._calls.start(request, decoupled, self._waiting_batch())

    def ask(self, method: str, arguments: List[Any]) -> Any:
        """See Host."""
        with self._lock:
            self._questions = question = self._questions + 1
            self._replies[question] = None
        try:
            self._link.send(Ask(question, method, arguments))
        except PyruntimeError as exc:
            del self._replies[question]
            raise TritonModelException(str(exc)) from exc
        replies = self._replies
        self._link.wait(lambda: replies[question] is not None)
        reply = replies.pop(question)
        if reply is None:
            raise TritonModelException("the server is gone")
        if reply.code != OK:
            raise TritonModelException(str(reply.value)) from InferenceError(str(reply.value), Code(reply.code))
        return reply.value

    def reply(self, message: Reply) -> None:
        """Handle the result of a function of the server."""
        self._replies[message.question] = message

    def tell(self, method: str, arguments: List[Any]) -> None:
        """See Host."""
        # Called by destructors, which must not raise if the host has ended.
        with contextlib.suppress(OSError, PyruntimeError):
            self._link.send(Ask(0, method, arguments))

    def report_memory(self, usage: List[Tuple[int, int, int]]) -> None:
        """See Host."""
        self.tell(REPORT_MEMORY, [*usage])

    def free_memory(self) -> int:
        """See Host."""
        return self._writer.free_bytes

    def gpu_memory(self) -> Optional[Tuple[int, GpuMemory]]:
        """See Host."""
        if self.on_gpu is None:
            return None
        from pyruntime.stub.gpus import ordinal_of  # most processes need it never

        uuid, regions = self.on_gpu
        return ordinal_of(uuid), regions.gpu

    def measure(self, metric: int, operation: str, value: float) -> None:
        """See Host."""
        if not self._link.closed:
            self._link.send(Measure(metric, operation, float(value)))
