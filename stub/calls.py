# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls to other models (BLS): their requests, their responses, and the memory of both.

The inputs of a call stay in place until the host says that they are no longer read. A large response stays in the
memory of the model that wrote it until no array here is a view of it: this is its *hold*.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple

from pyruntime.stub import gpus
from pyruntime.stub.gpus import settle
from pyruntime.stub.host import Answers
from pyruntime.stub.link import Link
from pyruntime.stub.memory import Copied, Held, Regions, Source, is_large
from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.stub.pb_utils.placement import PreferredMemory
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.errors import Code, PyruntimeError
from pyruntime.utils.messages import (
    NO_SLOT,
    OK,
    SLOT,
    Answer,
    Call,
    CancelCall,
    Consumed,
    ReleaseHold,
    StatelessResponse,
)
from pyruntime.utils.request_codec import IN_MAIN_MEMORY, PLACES

# At most so many small holds wait for the next message, which gives them back together.
DROPS_WAITING_MAX = 16


class _Hold:
    """Keeps the memory of a response. Gives it back when the last array with a view of it is deleted."""

    __slots__ = ("_calls", "_number")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number

    def __del__(self) -> None:
        self._calls.drop(self._number, at_once=True)


class _Call(Answers):
    """One call, from its request to its last response."""

    def __init__(self, calls: Calls, number: int, preferred: Optional[PreferredMemory]) -> None:
        self.number = number
        self._preferred = preferred
        self.finished = False
        self._forgotten = False
        self._calls = calls
        self._arrived: Deque[Tuple[Optional[StatelessResponse], bool]] = deque()
        self._wake: Optional[Callable[[], None]] = None
        self._lock = threading.Lock()

    def arrived(self, response: Optional[StatelessResponse], final: bool) -> bool:
        """The host has sent a response. False if the model will not take it."""
        with self._lock:
            if self._forgotten:  # its destructor runs, after which references to it are invalid
                return False
            self._arrived.append((response, final))
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()
        return True

    def when_next(self, wake: Callable[[], None]) -> None:
        """See Answers. Called in the thread of an event loop."""
        self._calls.attend()
        with self._lock:
            if not self._arrived and not self.finished and not self._calls.link.closed:
                self._wake = wake
                return
        wake()

    def lost(self) -> None:
        """The host has ended: wake the task that waits for a response."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def next(self) -> Optional[InferenceResponse]:
        """See Answers."""
        if self.finished:
            return None
        if not self._arrived and not self._calls.link.wait(self._arrived.__len__):
            raise TritonModelException("the server is gone")
        wire, self.finished = self._arrived.popleft()
        if not self.finished:
            self._calls.took(self.number)
        # As in Triton, an end without a response is an empty response.
        if wire is None:
            return InferenceResponse()
        response = self._calls.read(wire)
        preferred = self._preferred
        if preferred is not None and preferred._gpu is not None:
            from pyruntime.stub.pb_utils.gpu_copies import copied_to_gpu  # few calls prefer a GPU

            response._output_tensors = copied_to_gpu(response._output_tensors, preferred._gpu)
        return response

    def cancel(self) -> None:
        """See Answers."""
        if not self.finished:
            self._calls.cancel(self.number)

    def __del__(self) -> None:
        if self.finished or self._calls.link.closed:
            return
        # The model will not take the rest: give back the responses that have arrived, and those that still arrive.
        with self._lock:
            self._forgotten = True
        for wire, _ in self._arrived:
            if wire is not None and wire[SLOT] != NO_SLOT:
                self._calls.drop(wire[SLOT], at_once=True)
        self._calls.cancel(self.number)


class Calls:
    """The calls of all threads of a stub."""

    def __init__(self, link: Link, regions: Regions, writer: ResponseWriter) -> None:
        self.link = link
        # The open calls that a batch waits for, with the number of the batch, until execute has returned.
        self.waiting: Dict[int, int] = {}
        # The event loop that itself reads from the link, once it runs: see worker.py.
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        self._regions = regions
        self._writer = writer
        self._lock = threading.RLock()
        self._number = 0
        self._open: Dict[int, weakref.ref[_Call]] = {}
        self._inputs: Dict[int, Tuple[int, List[Tensor]]] = {}
        self._drops: Deque[int] = deque()

    def start(self, request: InferenceRequest, decoupled: bool, waiting: int) -> Answers:
        """Call a model. `waiting` is the batch that waits for it, 0 for none. Raises TritonModelException."""
        tensors = request._inputs
        assert tensors is not None  # the model has made the request
        slot, refs = self._writer.place(tensors, self._regions)
        with self._lock:
            self._number = number = self._number + 1
            call = _Call(self, number, request._preferred)
            self._open[number] = weakref.ref(call)
            if refs and type(refs[0][3]) is int:  # otherwise the message contains all inputs
                self._inputs[number] = (slot, tensors)
            if waiting:
                self.waiting[number] = waiting
        target, version = request._target
        fields = request._encode(refs)
        preferred = request._preferred
        if preferred is not None and preferred._gpu is None:
            fields[PLACES] = IN_MAIN_MEMORY
        if self._drops:
            self.flush(self.link.post)
        try:
            self.link.send(Call(number, target, version, fields, decoupled, waiting, request._priority))
        except PyruntimeError as exc:
            self._forget(number)
            raise TritonModelException(f"the request cannot be sent: {exc}") from exc
        return call

    def _forget(self, number: int) -> None:
        """Remove a call that could not be sent."""
        with self._lock:
            del self._open[number]
            self.waiting.pop(number, None)
        self.unread([number])

    def answered(self, message: Answer) -> None:
        """Handle a response to a call."""
        with self._lock:
            reference = self._open[message.call]
            if message.final:
                del self._open[message.call]
                self.waiting.pop(message.call, None)
        call = reference()
        is_wanted = call is not None and call.arrived(message.response, message.final)
        if not is_wanted and message.response is not None and message.response[SLOT] != NO_SLOT:
            self.drop(message.response[SLOT], at_once=True)

    def lost(self) -> None:
        """The host has ended: wake all tasks that wait for responses, because none will arrive."""
        with self._lock:
            calls = [reference() for reference in self._open.values()]
        for call in calls:
            if call is not None:
                call.lost()

    def unread(self, calls: List[int]) -> None:
        """Free the inputs of these calls, which are no longer read."""
        for number in calls:
            slot, _ = self._inputs.pop(number, (NO_SLOT, None))
            if slot != NO_SLOT:
                self._writer.free([slot])

    def read(self, wire: StatelessResponse) -> InferenceResponse:
        """Decode a response. Small tensors are copied, large ones mapped."""
        code, text, slot, tensors, parameters = wire
        if code != OK:
            return InferenceResponse(error=TritonError(text, Code(code)))
        hold = None
        if slot != NO_SLOT and any(is_large(size) or kind for _, _, _, _, size, kind, _ in tensors):
            hold = _Hold(self, slot)
        outputs = []
        for ref in tensors:
            at = ref[3]
            if ref[5]:  # not MEMORY_CPU
                outputs.append(self._regions.on_gpu(ref, hold))
                continue
            source = Copied(at) if isinstance(at, bytes) else self._source(at, ref[4], hold)
            outputs.append(Tensor._from_region(source, ref))
        if hold is None and slot != NO_SLOT:
            self.drop(slot, at_once=False)
        return InferenceResponse._from_wire(outputs, parameters)

    def _source(self, at: int, size: int, hold: Optional[_Hold]) -> Source:
        return Held(self._regions, hold) if is_large(size) else Copied(self._regions.read(at, size))

    def attend(self) -> None:
        """Have a thread read from the link while a running event loop waits that does not read from it itself."""
        if asyncio.get_running_loop() is not self.loop:
            self.link.attend()

    def took(self, number: int) -> None:
        """The model has taken a response, and more may follow."""
        self.link.send(Consumed([[number, 1]]))

    def cancel(self, number: int) -> None:
        """Cancel a call, if it is open."""
        with self._lock:
            if number not in self._open:
                return
        if not self.link.closed:
            self.link.send(CancelCall(number))

    def drop(self, hold: int, at_once: bool) -> None:
        """Give back a hold, at once or with the next message."""
        self._drops.append(hold)
        if at_once or len(self._drops) >= DROPS_WAITING_MAX:
            self.flush()

    def flush(self, send: Optional[Callable[[ReleaseHold], None]] = None) -> None:
        """Give all dropped holds back to the host."""
        drops = []
        while self._drops:
            try:
                drops.append(self._drops.popleft())
            except IndexError:  # another thread took it, or a destructor that runs during this loop
                break
        if drops and gpus.unsettled:
            settle()
        if drops and not self.link.closed:
            (send or self.link.send)(ReleaseHold(drops))
