# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls to other models (BLS): what was asked, what has been answered, and which memory both still need.

The inputs of a call stay where they are until the host says that nobody reads them any longer, and a large response
stays with the model that wrote it until no array here looks into it: that is its *hold*.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from pyruntime.stub.host import Answers
from pyruntime.stub.link import Link
from pyruntime.stub.memory import Copied, Held, Regions, Source, is_large
from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.errors import Code, PyruntimeError
from pyruntime.utils.messages import NO_SLOT, OK, SLOT, Answer, Call, CancelCall, Consumed, ReleaseHold, WireResponse

# Small holds that are given back together, with the next message that goes out.
DROPS_WAITING_MAX = 16


class _Hold:
    """Keeps a response's memory. Gives it back when the last array that looks into it is gone."""

    __slots__ = ("_calls", "_number")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number

    def __del__(self) -> None:
        self._calls.drop(self._number, at_once=True)


class _Call(Answers):
    """One call. `inputs` keeps what it was made of, until nobody reads it."""

    def __init__(self, calls: Calls, number: int) -> None:
        self.number = number
        self.finished = False
        self._forgotten = False
        self._calls = calls
        self._arrived: Deque[Tuple[Optional[WireResponse], bool]] = deque()
        self._wake: Optional[Callable[[], None]] = None
        self._lock = threading.Lock()

    def arrived(self, response: Optional[WireResponse], final: bool) -> bool:
        """The host has answered. False if nobody will take it."""
        with self._lock:
            if self._forgotten:  # its destructor runs: only then do references to it go
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
        """The host is gone."""
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
        # An end that came alone is a response, too, though one of nothing: it is in Triton.
        return InferenceResponse() if wire is None else self._calls.read(wire)

    def cancel(self) -> None:
        """See Answers."""
        if not self.finished:
            self._calls.cancel(self.number)

    def __del__(self) -> None:
        if self.finished or self._calls.link.closed:
            return
        # Nobody will ask for the rest: what has arrived is given back, and so is what still comes.
        with self._lock:
            self._forgotten = True
        for wire, _ in self._arrived:
            if wire is not None and wire[SLOT] != NO_SLOT:
                self._calls.drop(wire[SLOT], at_once=True)
        self._calls.cancel(self.number)


class Calls:
    """All calls of a stub, of all its threads."""

    def __init__(self, link: Link, regions: Regions, writer: ResponseWriter) -> None:
        self.link = link
        # The calls under way that a batch waits for, and the batch: until execute has returned.
        self.waiting: Dict[int, int] = {}
        # The event loop that reads from the link itself.
        self.loop: Any = None
        self._regions = regions
        self._writer = writer
        self._lock = threading.RLock()
        self._number = 0
        self._open: Dict[int, weakref.ref[_Call]] = {}
        self._inputs: Dict[int, Tuple[int, List[Tensor]]] = {}
        self._drops: Deque[int] = deque()

    def start(self, request: InferenceRequest, decoupled: bool, waiting: int) -> Answers:
        """Call a model on behalf of batch `waiting`, or of none that waits. Raises TritonModelException."""
        tensors = request._inputs
        assert tensors is not None  # the model has made the request
        slot, refs = self._writer.place(tensors, self._regions)
        with self._lock:
            self._number = number = self._number + 1
            call = _Call(self, number)
            self._open[number] = weakref.ref(call)
            if refs and type(refs[0][3]) is int:  # else it all goes along
                self._inputs[number] = (slot, tensors)
            if waiting:
                self.waiting[number] = waiting
        target, version = request._target
        fields = request._encode(refs)
        if self._drops:
            self.flush(self.link.post)
        try:
            self.link.send(Call(number, target, version, fields, decoupled, waiting))
        except PyruntimeError as exc:
            self._forget(number)
            raise TritonModelException(f"the request cannot be sent: {exc}") from exc
        return call

    def _forget(self, number: int) -> None:
        """A call that never began."""
        with self._lock:
            del self._open[number]
            self.waiting.pop(number, None)
        self.unread([number])

    def answered(self, message: Answer) -> None:
        """The host's answer to a call."""
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
        """The host is gone: whoever awaits an answer is told, because it will not come."""
        with self._lock:
            calls = [reference() for reference in self._open.values()]
        for call in calls:
            if call is not None:
                call.lost()

    def unread(self, calls: List[int]) -> None:
        """Nobody reads the inputs of these calls any longer."""
        for number in calls:
            slot, _ = self._inputs.pop(number, (NO_SLOT, None))
            if slot != NO_SLOT:
                self._writer.free([slot])

    def read(self, wire: WireResponse) -> InferenceResponse:
        """The response that arrived, its small tensors copied and its large ones mapped."""
        code, text, slot, tensors, parameters = wire
        if code != OK:
            return InferenceResponse(error=TritonError(text, Code(code)))
        hold = None
        if slot != NO_SLOT and any(is_large(size) for _, _, _, _, size, _, _ in tensors):
            hold = _Hold(self, slot)
        outputs = []
        for ref in tensors:
            at = ref[3]
            source = Copied(at) if isinstance(at, bytes) else self._source(at, ref[4], hold)
            outputs.append(Tensor._from_region(source, ref))
        if hold is None and slot != NO_SLOT:
            self.drop(slot, at_once=False)
        return InferenceResponse._from_wire(outputs, parameters)

    def _source(self, at: int, size: int, hold: Optional[_Hold]) -> Source:
        return Held(self._regions, hold) if is_large(size) else Copied(self._regions.read(at, size))

    def attend(self) -> None:
        """A running event loop waits for an answer: somebody has to read it while it does."""
        if asyncio.get_running_loop() is not self.loop:
            self.link.attend()

    def took(self, number: int) -> None:
        """The model has taken a response, and more may come."""
        self.link.send(Consumed([[number, 1]]))

    def cancel(self, number: int) -> None:
        """Nobody waits for this call any longer."""
        with self._lock:
            if number not in self._open:
                return
        if not self.link.closed:
            self.link.send(CancelCall(number))

    def drop(self, hold: int, at_once: bool) -> None:
        """Nobody looks into this hold any longer."""
        self._drops.append(hold)
        if at_once or len(self._drops) >= DROPS_WAITING_MAX:
            self.flush()

    def flush(self, send: Optional[Callable[[ReleaseHold], None]] = None) -> None:
        """Tell the host of all holds that are not needed."""
        drops = []
        while self._drops:
            try:
                drops.append(self._drops.popleft())
            except IndexError:  # another thread, or a destructor in the midst of this one
                break
        if drops and not self.link.closed:
            (send or self.link.send)(ReleaseHold(drops))
