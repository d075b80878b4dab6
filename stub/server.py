# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implements the interface of host.py in a stub, by messages to the host."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from pyruntime.stub import gpus
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
    encode_error,
)
from pyruntime.utils.regions import Region

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.stub.memory import Regions


# The names of dropped outputs that the host is told, and the characters of each: a model may make up names.
DROPPED_MAX = 64
DROPPED_CHARS_MAX = 1000


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
        # The batch whose execute waits for room, 0 if none does.
        self.held = 0
        self._lock = threading.RLock()
        self._dropped: Set[str] = set()
        self._questions = 0
        self._replies: Dict[int, Optional[Reply]] = {}

    # Answering requests.

    def respond(self, serial: int, response: Optional[InferenceResponse], wanted: Set[str], final: bool) -> None:
        """See Host."""
        if self._link.closed:
            return  # the host has ended; or this is a child that the model forked, and the memory is its parent's
        flow = self._flow
        wire = None if response is None else self._writer.write(response, wanted)
        if final and gpus.unsettled:
            settle()
        if final and type(wanted) is ClientOutputs:
            wanted.memory.keep()
        with self._lock:
            if final:
                flow.end(serial)
            elif wire is not None:
                flow.sent(serial, sum(size for _, _, _, _, size, _, _ in wire[TENSORS]))
        start_ns = self._started_ns(serial) if final else 0
        try:
            self._link.send(Respond(serial, wire, final, start_ns))
        except PyruntimeError as exc:  # the response has more text than fits into a frame
            if wire is not None:
                self._writer.drop(wire)
            error = encode_error(Code.INTERNAL, f"a response cannot be sent: {exc}")
            with contextlib.suppress(LocalError):  # the stub has just sent Stopped; the host frees everything then
                self._link.send(Respond(serial, error, final, start_ns))
        if final:
            self._on_final()

    def drop(self, name: str) -> None:
        """The model has returned an output that its configuration does not declare: the host logs that, once."""
        # A message has no text that UTF-8 cannot encode.
        name = name[:DROPPED_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
        if name not in self._dropped and len(self._dropped) < DROPPED_MAX:
            self._dropped.add(name)
            self.tell(REPORT_DROPPED, [name])

    def wait_for_room(self, serial: int) -> None:
        """See Host."""
        flow = self._flow
        if flow.may_send(serial):
            return
        batch = self._waiting_batch()
        try:
            if batch:
                self.held = batch
                self._waiting_batch()  # returns what another thread has read before it could see that
            self._link.wait(lambda: flow.may_send(serial))
        finally:
            if batch:
                self.held = 0

    def has_room(self, serial: int) -> bool:
        """See Host."""
        return self._flow.may_send(serial)

    def ended(self, serial: int) -> None:
        """See Host."""
        with self._lock:
            self._flow.end(serial)
        self._link.wake()  # a thread may wait for room

    def credit(self, streams: List[List[int]]) -> None:
        """Clients have received responses: `[serial, count]` pairs."""
        with self._lock:
            for serial, count in streams:
                self._flow.credit(serial, count)

    def is_cancelled(self, serial: int) -> bool:
        """See Host."""
        return self._flags.flag(serial) != 0

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
