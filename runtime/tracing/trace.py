# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Records the trace of one request, and of the calls to other models that it causes. (pure)

A trace is complete when its request is answered and, if a client sent it, the client has the response. All traces of
one client's request are a tree, which is exported when the last of them is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyruntime.runtime.regions import ClientRegion, GpuRegion, GrantedRegion, SharedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputPlace
from pyruntime.runtime.tracing.sampling import Sampler
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import TensorRef

# The most traced calls of one request, and the most notes of one trace, so that a model that streams for hours or calls
# others in a loop does not fill the memory.
TREE_TRACES_MAX = 1000
NOTES_MAX = 10_000
# The most bytes that are kept of one tensor, and of all tensors of a request together.
TENSOR_BYTES_MAX = 1 << 20
TREE_BYTES_MAX = 64 << 20


_Respond = Callable[[InferResponse | InferenceError | None, bool], None]


class JobTrace(Protocol):
    """Records the steps of a job: a Trace, or what takes its place."""

    def note(self, activity: str, ns: int) -> None: ...

    def executed(self, begin_ns: int, start_ns: int, end_ns: int) -> None: ...

    def streamed(self, begin_ns: int, end_ns: int) -> None: ...

    def composed(self, begin_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None: ...

    def answering(self, respond: _Respond) -> _Respond: ...

    def refused(self, failure: InferenceError) -> None: ...


class TracedJob(Protocol):
    """The properties of a job that a trace uses."""

    tensors: list[TensorRef]
    trace_context: str
    arrived_ns: int
    regions: Sequence[GrantedRegion]
    respond: _Respond
    trace: JobTrace | None


class TensorNote(NamedTuple):
    """A copy of a tensor; `data` are its first bytes, all of them unless `size` is larger."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes
    size: int


class SpanIds(NamedTuple):
    """The ids of the spans of one trace, in hexadecimal: `request` is the client's request, "" for a call, `model` the
    work of the model for it, `compute` its execution. `parent` is the parent of the first of them, "" for none.
    """

    trace: str
    parent: str
    request: str
    model: str
    compute: str


@dataclass(slots=True, eq=False)
class Tree:
    """A client's request and all calls that it causes. `sampler` has picked it, with the settings `timestamps` and
    `tensors` at that time; `traces` are the complete ones.
    """

    sampler: Sampler
    timestamps: bool
    tensors: bool
    traces: list[Trace] = field(default_factory=list)
    under_way: int = 0
    begun: int = 0
    bytes_left: int = TREE_BYTES_MAX


class Trace:
    """The trace of one request. `context` identifies it in the calls of its model: see utils/request_codec.py.

    `notes` are activities with their times, in nanoseconds of the monotonic clock, or with a tensor. `failure` is the
    error of the response, "" for none.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_executed",
        "_on_end",
        "_over",
        "_respond",
        "context",
        "failure",
        "id",
        "model_name",
        "model_version",
        "notes",
        "parent_id",
        "request_id",
        "spans",
        "tree",
    )

    def __init__(
        self,
        tree: Tree,
        id: int,
        parent_id: int,
        model: tuple[str, int],
        request_id: str,
        context: str,
        spans: SpanIds | None,
        clock: Callable[[], int],
        on_end: Callable[[Trace], None],
    ) -> None:
        """`model` is name and version; `clock` is monotonic; `on_end` is called once the trace is complete."""
        self.tree = tree
        self.id = id
        self.parent_id = parent_id
        self.model_name, self.model_version = model
        self.request_id = request_id
        self.context = context
        self.spans = spans
        self.notes: list[tuple[str, int | TensorNote]] = []
        self.failure = ""
        self._clock = clock
        self._on_end = on_end
        self._executed = self._over = False
        # The number of parties that have not finished the request yet: the model, and the frontend unless it is a call.
        self._due = 1 if parent_id else 2
        self._respond: _Respond | None = None
        tree.begun += 1
        tree.under_way += 1

    def __repr__(self) -> str:
        return f"<Trace {self.id} of {self.model_name} [{len(self.notes)} notes]>"

    # Called by frontends.

    def note(self, activity: str, ns: int) -> None:
        """Record an activity at `ns` of the monotonic clock, in nanoseconds."""
        if self.tree.timestamps and self._due and len(self.notes) < NOTES_MAX:
            self.notes.append((activity, ns))

    def close(self) -> None:
        """The client has its response, or has disconnected. Not called for traces of calls."""
        self._end()

    def attach(self, job: TracedJob, region: SharedRegion) -> None:
        """Attach the job of the request, before it starts. `region` is the request region of its model.

        From here on the trace records the steps of the job.
        """
        job.trace_context = self.context
        self.note("REQUEST_START", job.arrived_ns)
        self.note("QUEUE_START", self._clock())
        if self.tree.tensors:
            regions: dict[int, GrantedRegion] = {each.number: each for each in [region, *job.regions]}
            for name, datatype, shape, at, size, _, _ in job.tensors:
                if isinstance(at, bytes):
                    place: GrantedRegion | bytes = at
                    offset = 0
                else:
                    number, offset = split(at)
                    place = regions.get(number, region)
                self._note_tensor("TENSOR_QUEUE_INPUT", (name, datatype, shape), place, offset, size)
        job.trace = self
        job.respond = self.answering(job.respond)

    def refused(self, failure: InferenceError) -> None:
        """The attached job could not start, and will not be answered."""
        self.failure = failure.message or failure.code.name
        self.note("REQUEST_END", self._clock())
        self._respond = None
        self._end()

    # Called when the state of the job changes.

    def executed(self, begin_ns: int, start_ns: int, end_ns: int) -> None:
        """The model received the request, began to execute it, and returned, at these times.

        Ignored if a sender has already answered the request to its end.
        """
        if self._over:
            return
        self._executed = True
        self.note("COMPUTE_START", begin_ns)
        self.note("COMPUTE_INPUT_END", start_ns)
        self.note("COMPUTE_OUTPUT_START", end_ns)

    def streamed(self, begin_ns: int, end_ns: int) -> None:
        """A sender has answered the request to its end. Records the times of execution if `executed` was not called."""
        if not self._executed:
            self.executed(begin_ns, begin_ns, end_ns)

    def composed(self, begin_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """The steps of an ensemble have executed the request. They have traces of their own, as in Triton."""

    def answering(self, respond: _Respond) -> _Respond:
        """A function like `respond` that records the response too."""
        self._respond = respond
        return self._answered

    def _answered(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        respond = self._respond
        assert respond is not None  # the job has it from us, and answers to the end just once
        now_ns = self._clock()
        if isinstance(outcome, InferResponse):
            if self.tree.tensors:
                for output in outcome.outputs:
                    kind = (output.name, output.datatype, output.shape)
                    if isinstance(output.place, OutputPlace):
                        contents = output.place.contents
                        _, offset = split(contents.address)
                        size = output.place.byte_size
                        self._note_tensor("TENSOR_BACKEND_OUTPUT", kind, contents.memory, offset, size)
                    else:
                        self._note_tensor("TENSOR_BACKEND_OUTPUT", kind, output.data, 0, len(output.data))
            self.note("INFER_RESPONSE_COMPLETE", now_ns)
        elif outcome is not None:
            self.failure = outcome.message or outcome.code.name
        if final:
            self._over = True
            if self._executed:
                self.note("COMPUTE_END", now_ns)
            self.note("REQUEST_END", now_ns)
            self._respond = None  # breaks the reference cycle
        respond(outcome, final)
        if final:
            self._end()

    def _note_tensor(
        self,
        activity: str,
        kind: tuple[str, str, Sequence[int]],
        place: GrantedRegion | memoryview | bytes,
        offset: int,
        size: int,
    ) -> None:
        """Copy a tensor of this name, datatype and shape, whose contents are `size` bytes at `offset` of `place`."""
        if len(self.notes) >= NOTES_MAX:
            return
        tree = self.tree
        kept = min(size, TENSOR_BYTES_MAX, tree.bytes_left)
        if isinstance(place, ClientRegion):
            data = place.read(offset, kept)
        elif isinstance(place, GpuRegion):
            data = b""  # not worth a copy from there
        else:
            view = memoryview(place) if isinstance(place, (bytes, memoryview)) else place.view
            data = bytes(view[offset : offset + kept])
        tree.bytes_left -= len(data)
        name, datatype, shape = kind
        self.notes.append((activity, TensorNote(name, datatype, tuple(shape), data, size)))

    def _end(self) -> None:
        self._due -= 1
        if not self._due:
            self._on_end(self)
