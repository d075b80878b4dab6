# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server as the objects of `triton_python_backend_utils` see it from within a stub: see host.py."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, List, Optional, Set

from pyruntime.stub.calls import Calls
from pyruntime.stub.client_memory import ClientOutputs
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.link import Link
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.responses import ResponseWriter, failure
from pyruntime.utils.errors import Code, InferenceError, PyruntimeError
from pyruntime.utils.flow_control import Windows
from pyruntime.utils.messages import NO_SLOT, OK, Ask, Measure, Reply, Respond
from pyruntime.utils.regions import Region


class Server(Host):
    """See the module. `waiting_batch` says which batch cannot go on before a call of this thread is answered."""

    def __init__(
        self,
        link: Link,
        calls: Calls,
        writer: ResponseWriter,
        flags: Region,
        waiting_batch: Callable[[], int],
        on_final: Callable[[], None],
    ) -> None:
        self._link = link
        self._calls = calls
        self._writer = writer
        self._flags = flags
        self._waiting_batch = waiting_batch
        self._on_final = on_final
        self._windows = Windows()
        self._lock = threading.RLock()
        self._questions = 0
        self._replies: Dict[int, Optional[Reply]] = {}

    # Answering requests.

    def respond(self, serial: int, response: Optional[InferenceResponse], wanted: Set[str], final: bool) -> None:
        """See Host."""
        if self._link.closed:
            return  # the host is gone; or the model has forked this process, and the memory is its parent's
        windows = self._windows
        wire = None if response is None else self._writer.write(response, wanted)
        if final and type(wanted) is ClientOutputs:
            wanted.memory.keep()
        with self._lock:
            if final:
                windows.end(serial)
            elif wire is not None:
                windows.sent(serial, sum(size for _, _, _, _, size, _, _ in wire[3]))
        try:
            self._link.send(Respond(serial, wire, final))
        except PyruntimeError as exc:  # more text than a frame holds
            if wire is not None and wire[2] != NO_SLOT:
                self._writer.free([wire[2]])
            self._link.send(Respond(serial, failure(Code.INTERNAL, f"a response cannot be sent: {exc}"), final))
        if final:
            self._on_final()

    def wait_for_room(self, serial: int) -> None:
        """See Host."""
        windows = self._windows
        if not windows.is_open(serial):
            self._link.wait(lambda: windows.is_open(serial))

    def has_room(self, serial: int) -> bool:
        """See Host."""
        return self._windows.is_open(serial)

    def ended(self, serial: int) -> None:
        """See Host."""
        with self._lock:
            self._windows.end(serial)
        self._link.wake()  # a thread may wait for room

    def credit(self, streams: List[List[int]]) -> None:
        """Clients have taken so many responses."""
        with self._lock:
            for serial, count in streams:
                self._windows.taken(serial, count)

    def is_cancelled(self, serial: int) -> bool:
        """See Host."""
        return self._flags.flag(serial) != 0

    def forgotten(self, serial: int) -> None:
        """See Host."""
        LOGGER.warning("the model let go of a request, and of its response senders, that it had not finished")

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
        """The answer to a question."""
        self._replies[message.question] = message

    def tell(self, method: str, arguments: List[Any]) -> None:
        """See Host."""
        # A destructor has nobody to tell that the host is gone.
        with contextlib.suppress(OSError, PyruntimeError):
            self._link.send(Ask(0, method, arguments))

    def free_memory(self) -> int:
        """See Host."""
        return self._writer.free_bytes

    def measure(self, metric: int, operation: str, value: float) -> None:
        """See Host."""
        if not self._link.closed:
            self._link.send(Measure(metric, operation, float(value)))
