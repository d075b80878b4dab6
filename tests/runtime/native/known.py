# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An instance of tests/native/known.cc, whose action is the first byte of a request's contents."""

import ctypes
import select

from pyruntime.runtime.native import _triton

DOCUMENT = b'{"inputs": []}!'
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
SIZE = 8
# The actions of the backend: see known.cc.
(
    ECHO, NO_STATISTICS, FAILED_STATISTICS, ERROR_RESPONSE, EXECUTE_FAILS, RELEASE_LATER, ALL_LATER, RESPOND_LATER, GO,
    OTHER_NAME, OTHER_DATATYPE, OTHER_SHAPE, SHORTER, PARAMETER, TWO_OUTPUTS, NO_OUTPUT, TWO_REPORTS, LOST,
    OTHER_THREAD, WAIT, UNTIL_CANCELLED, TELL, THROW, FENCE, NOTE, KEEP_FACTORY,
) = range(26)  # fmt: skip
# The times that the backend reports for a request and for a batch.
TIMES = (True, 1, 2, 3, 4)
REPORTED = (7, 1, 2, 3, 4)
NAMES = {
    _triton.RESPONSE: "response",
    _triton.RELEASED: "released",
    _triton.EXECUTED: "executed",
    _triton.ANSWERED: "answered",
    _triton.ENCODED: "encoded",
    _triton.SENT: "sent",
    _triton.BATCH_STATISTICS: "batch",
    _triton.RETURNED: "returned",
    _triton.COUNTED: "counted",
}


class Job:
    """Stands for the Python object of a request."""


def contents(action, size=SIZE):
    """Contents of IN for an action."""
    return (bytes([action]) + bytes(range(100, 200)) * (size // 100 + 1))[:size]


def wire(size=SIZE, **fields):
    """A request with one input, as it is known."""
    usual = {"correlation": 0, "flags": 0, "timeout": 0, "outputs": None, "parameters": ""}
    return ["", *(usual | fields).values(), [("IN", "UINT8", [size], 0, size, 0, 0)], "", None]


def plain(outputs):
    """Outputs of an event."""
    return [(name, datatype, shape, bytes(data)) for name, datatype, shape, data in outputs]


class KnownRequests:
    """One instance, and the events that come of it: (what, job, *rest) each."""

    def __init__(self, native, path):
        self.native = native
        self.library = ctypes.CDLL(str(path))
        self.instance = native.instance
        self.model = native.model
        self.serial = 0
        self.events = []
        _triton.drain()  # what others have left

    def known(self, *, document=DOCUMENT, size=SIZE, **fields):
        return _triton.KnownRequest(self.model, document, len(document) + size, wire(size, **fields))

    def give(self, known, body, job=None, at=0):
        """Give the instance a body; its job, or None if it is not known."""
        job = Job() if job is None else job
        self.serial += 1
        found = self.instance.execute_known(known, job, body, at, self.serial, None)
        assert type(found) is bool
        self.instance.wake()
        if not found:
            return None
        job.serial = self.serial
        return job

    def act(self, known, action):
        """Have the backend do something; the job."""
        job = self.give(known, DOCUMENT + contents(action))
        assert job is not None
        return job

    def take(self):
        for kind, *rest in _triton.drain():
            if kind in NAMES:
                self.events.append((NAMES[kind], *rest))

    def wait(self, condition):
        """Take events until something is so."""
        poll = select.poll()
        poll.register(_triton.descriptor(), select.POLLIN)
        while not condition():
            assert poll.poll(60_000), f"the backend does nothing more: {self.events}"
            self.take()

    def _executed(self):
        """The serials of the batches of which it is known that Execute has returned."""
        found = []
        for what, _, *rest in self.events:
            execution = rest[0] if what == "executed" else rest[-1] if what in ("answered", "encoded", "sent") else None
            if execution is not None:
                found.append(execution[0])
        return found

    def hold(self, known):
        """Have the backend answer, and not return before `let_go`; the job, of which nothing was taken yet."""
        job = self.act(known, WAIT)
        self.library.KnownAwaitFence()
        return job

    def let_go(self):
        """Let a backend go on that waits in Execute."""
        self.library.KnownLetGo()

    def settled(self):
        """Wait until the backend has done all that it was given; the events, of which none was taken before."""
        fence = self.act(self.known(), FENCE)
        self.library.KnownAwaitFence()
        self.take()
        self.take()  # what only came of that
        events, self.events = self.events, []
        self.library.KnownLetGo()
        self.wait(lambda: self.serial in self._executed())
        assert all(event[1] in (fence, self.native) for event in self.events)
        # Counts of lent connections may come with the fence's events: keep them for the next call.
        self.events = [event for event in self.events if event[0] == "counted"]
        return events

    def executed(self, count=1):
        """Wait until so many batches were executed; the events, taken as they came."""
        self.wait(lambda: len(self._executed()) >= count)
        events, self.events = self.events, []
        return events

    def remember(self, known, size=SIZE):
        """Have it remembered what plain responses are like."""
        known.remember(HEAD, [("OUT", "UINT8", [size], size)])
        return known
