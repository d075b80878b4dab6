# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An instance of tests/native/plain.cc, whose action is the first byte of a request's contents."""

import ctypes
import json
import select

from pyruntime.runtime.frontends.http.kserve_response import encode_binary
from pyruntime.runtime.frontends.http.response_head import infer_head
from pyruntime.runtime.native import _triton
from pyruntime.runtime.requests.types import InferResponse, OutputTensor

SIZE = 8
# The actions of the backend: see plain.cc.
(
    ECHO, NO_STATISTICS, FAILED_STATISTICS, ERROR_RESPONSE, EXECUTE_FAILS, RELEASE_LATER, ALL_LATER, RESPOND_LATER, GO,
    OTHER_NAME, OTHER_DATATYPE, OTHER_SHAPE, SHORTER, PARAMETER, TWO_OUTPUTS, NO_OUTPUT, TWO_REPORTS, LOST,
    OTHER_THREAD, WAIT, UNTIL_CANCELLED, TELL, THROW, FENCE, NOTE, KEEP_FACTORY,
) = range(26)  # fmt: skip
# The times that the backend reports for a request and for a batch.
TIMES = (True, 1, 2, 3, 4)
REPORTED = (1, 1, 2, 3, 4)
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


# The outputs that the model declares.
OUTPUTS = (("OUT", "UINT8", [-1]), ("OUT2", "UINT8", [-1]))


class Job:
    """Stands for the Python object of a request."""


def contents(action, size=SIZE):
    """Contents of IN for an action."""
    return (bytes([action]) + bytes(range(100, 200)) * (size // 100 + 1))[:size]


def tensor(name, datatype, shape, size):
    """An input of a document."""
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def document(*inputs, parameters=(), **members):
    """A document with these inputs, whose client wants its outputs as binary data."""
    parameters = {"binary_data_output": True, **dict(parameters)}
    return json.dumps({"inputs": list(inputs), "parameters": parameters, **members}).encode()


def document_of(size):
    """The document of a request with one input."""
    return document(tensor("IN", "UINT8", [size], size))


def answer(*outputs, id=""):
    """The response with these outputs, as Python writes it; an output is (name, datatype, shape, contents)."""
    tensors = [OutputTensor(*output[:3], memoryview(output[3])) for output in outputs]
    written, parts, length = encode_binary(InferResponse("model", 1, id, tensors))
    return b"".join([infer_head(len(written) if parts else 0, length, b""), written, *parts])


def head_of(size):
    """All but the contents of the response with one output."""
    whole = answer(("OUT", "UINT8", [size], bytes(size)))
    return whole[: len(whole) - size]


DOCUMENT = document_of(SIZE)
HEAD = head_of(SIZE)


def described(outputs):
    """Outputs of an event."""
    return [(name, datatype, shape, bytes(data)) for name, datatype, shape, data in outputs]


class PlainInstance:
    """One instance, and the events that come of it: (what, job, *rest) each."""

    def __init__(self, native, path):
        self.native = native
        self.library = ctypes.CDLL(str(path))
        self.instance = native.instance
        self.model = native.model
        self.serial = 0
        self.events = []
        _triton.drain()  # what others have left

    def plain(self, inputs=(("IN", "UINT8", 1, [-1], True),), outputs=OUTPUTS, rows_max=0):
        """What reads the plain requests to the model."""
        return _triton.PlainRequests(self.model, inputs, outputs, rows_max)

    def give(self, plain, body, job=None, at=0, document_length=None):
        """Give the instance a body; its job, or None if it is not plain."""
        job = Job() if job is None else job
        self.serial += 1
        length = len(DOCUMENT) if document_length is None else document_length
        read = self.instance.execute_plain(plain, job, body, at, length, self.serial, None)
        self.instance.wake()
        if read is None:
            return None
        job.rows, job.id = read
        job.serial = self.serial
        return job

    def act(self, plain, action):
        """Have the backend do something; the job."""
        job = self.give(plain, DOCUMENT + contents(action))
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

    def hold(self, plain):
        """Have the backend answer, and not return before `let_go`; the job, of which nothing was taken yet."""
        job = self.act(plain, WAIT)
        self.library.PlainAwaitFence()
        return job

    def let_go(self):
        """Let a backend go on that waits in Execute."""
        self.library.PlainLetGo()

    def settled(self):
        """Wait until the backend has done all that it was given; the events, of which none was taken before."""
        fence = self.act(self.plain(), FENCE)
        self.library.PlainAwaitFence()
        self.take()
        self.take()  # what only came of that
        events, self.events = self.events, []
        self.library.PlainLetGo()
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
