# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceRequest`: a request to `execute`, or a request that a model sends to another one (BLS)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Set, Tuple, Union, cast, overload

from pyruntime.stub import host
from pyruntime.stub.client_memory import ClientMemory, ClientOutputs, GpuOutputs
from pyruntime.stub.pb_utils.arguments import INT64, UINT32, UINT64, as_bool, as_integer, as_text
from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.stub.pb_utils.functions import TRITONSERVER_REQUEST_RELEASE_ALL
from pyruntime.stub.pb_utils.iterator import ResponseIterator
from pyruntime.stub.pb_utils.placement import InferenceTrace, PreferredMemory
from pyruntime.stub.pb_utils.response import InferenceResponse, check_parameters
from pyruntime.stub.pb_utils.sender import InferenceResponseSender
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.request_codec import MEMORY_GPU, encode_request

if TYPE_CHECKING:
    from pyruntime.stub.memory import Regions, Source
    from pyruntime.stub.streams import Stream
    from pyruntime.utils.request_codec import OutputPlaceRef, TensorRef, WireRequest


# Guards the creation of a request's stream: threads may get senders while execute returns.
_streams = threading.RLock()


class InferenceRequest:
    """One request, either from the host or created by the model for a call."""

    __slots__ = (
        "__weakref__",
        "_answered",
        "_correlation_id",
        "_flags",
        "_id",
        "_inputs",
        "_outputs",
        "_parameters",
        "_preferred",
        "_priority",
        "_region",
        "_release_flags",
        "_requested_outputs",
        "_serial",
        "_stream",
        "_target",
        "_tensors",
        "_timeout_us",
        "_trace_context",
    )

    # Most of what came is never asked for.
    _id: str
    _correlation_id: Union[int, str]
    _flags: int
    _timeout_us: int
    _requested_outputs: Optional[List[str]]
    _parameters: str
    _tensors: List[TensorRef]
    _trace_context: str
    _region: Source
    _outputs: Set[str]
    _inputs: Optional[List[Tensor]]
    # The host's number of the request; 0 for a request that the model created, which goes to `_target`.
    _serial: int
    _stream: Optional[Stream]
    # Whether it was answered without a stream.
    _answered: bool
    _target: Tuple[str, int]
    # Of a request that the model created, as is the next one.
    _preferred: Optional[PreferredMemory]
    # Only native code can set another one.
    _priority: int
    _release_flags: int

    def __init__(
        self,
        request_id: Union[str, bytes] = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[Union[str, bytes]] = (),
        model_name: Union[str, bytes] = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[Dict[str, Union[bool, int, str]]] = None,
    ) -> None:
        """A request to another model, of version -1 for any. `timeout` is in microseconds, 0 for none.

        Texts may be bytes, and numbers numpy's: see arguments.py. Raises TritonModelException, in Triton's words, or
        TypeError.
        """
        # Defaults, and arguments of the exact type, need no call: models make many requests.
        if type(request_id) is not str:
            request_id = as_text(request_id, "request_id")
        if type(model_name) is not str:
            model_name = as_text(model_name, "model_name")
        about = f"request with id '{request_id}' and model name '{model_name}' should not be empty."
        self._inputs = list(inputs)
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor for {about}")
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):  # one on a GPU is another class
                raise TypeError(f"inputs must be pb_utils.Tensor objects, found {type(tensor)}")
        if isinstance(requested_output_names, (str, bytes, bytearray)):  # whose elements are no names
            raise TypeError(f"requested_output_names must be a list of names, found {type(requested_output_names)}")
        names = set()
        for name in requested_output_names:
            text = name if type(name) is str else as_text(name, "a requested output name")
            if not text:
                raise TritonModelException(f"Requested output name for {about}")
            names.add(text)
        if not model_name:
            raise TypeError("model_name must be the name of a model, found ''")
        if preferred_memory is not None and type(preferred_memory) is not PreferredMemory:
            raise TypeError(f"preferred_memory must be a pb_utils.PreferredMemory, found {type(preferred_memory)}")
        if trace is not None and type(trace) is not InferenceTrace:
            raise TypeError(f"trace must be that of a request, found {type(trace)}")
        if type(correlation_id) is not int or correlation_id:
            correlation_id = _checked_correlation_id(correlation_id)
        if type(model_version) is not int or model_version != -1:
            model_version = as_integer(model_version, "model_version", INT64)
        if type(flags) is not int or flags:
            flags = as_integer(flags, "flags", UINT32)
        if type(timeout) is not int or timeout:
            timeout = as_integer(timeout, "timeout", UINT64)
        self._outputs = names
        self._preferred = preferred_memory
        self._target = (model_name, model_version)
        self._serial = 0
        self._stream = None
        self._answered = False
        self._priority = 0
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._id = request_id
        self._correlation_id = correlation_id
        self._flags = flags
        self._timeout_us = timeout
        self._requested_outputs = sorted(self._outputs) or None
        self._parameters = check_parameters(parameters) if parameters is not None else ""
        self._trace_context = "" if trace is None else trace._context

    @classmethod
    def _from_wire(cls, region: Source, wire: WireRequest, all_outputs: Set[str], serial: int) -> InferenceRequest:
        """A request of the host's, to a model with these outputs."""
        request = cls.__new__(cls)
        (
            request._id,
            request._correlation_id,
            request._flags,
            request._timeout_us,
            outputs,
            request._parameters,
            request._tensors,
            request._trace_context,
            places,
        ) = wire
        request._region = region
        request._requested_outputs = outputs
        request._outputs = all_outputs if outputs is None else set(outputs)
        if places is not None:
            request._use_places(places)
        request._inputs = request._stream = None
        request._answered = False
        request._serial = serial
        request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        return request

    def _use_places(self, places: Dict[str, OutputPlaceRef]) -> None:
        if any(kind == MEMORY_GPU for _, _, kind, _ in places.values()):
            self._outputs = GpuOutputs(self._outputs, places, cast("Regions", self._region))
            return
        memory = ClientMemory(cast("Regions", self._region), places, self._tensors)
        memory.belong(self)
        self._region = memory
        self._outputs = ClientOutputs(self._outputs, memory)

    def _encode(self, tensors: List[TensorRef]) -> List[object]:
        """The request with these inputs, for a call or for native code."""
        options = self._correlation_id, self._flags, self._timeout_us, self._requested_outputs, self._parameters
        return encode_request(self._id, options, tensors, self._trace_context)

    def __repr__(self) -> str:
        return f"<InferenceRequest {self._id!r} {self.inputs()}>"

    def inputs(self) -> List[Tensor]:
        """The inputs of the request; optional ones may be missing."""
        inputs = self._inputs
        if inputs is None:
            region = self._region
            inputs = []
            for tensor in self._tensors:  # faster than a comprehension
                inputs.append(Tensor._from_region(region, tensor))
            self._inputs = inputs
        return inputs

    def request_id(self) -> str:
        """The client's id for the request, "" if it gave none."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """The sequence's id: a str if the client's was one; 0 if there is none."""
        return self._correlation_id

    def requested_output_names(self) -> Set[str]:
        """Names of the outputs the client wants; all of the model's if it named none."""
        return set(self._outputs)

    def flags(self) -> int:
        """Bits of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags."""
        self._flags = as_integer(flags, "flags", UINT32)

    def timeout(self) -> int:
        """The client's timeout in microseconds; 0 if there is none."""
        return self._timeout_us

    def parameters(self) -> str:
        """The client's own parameters as a JSON object in text."""
        return self._parameters or "{}"

    def trace(self) -> InferenceTrace:
        """The trace that the request belongs to."""
        return InferenceTrace(self._trace_context)

    def get_response_sender(self) -> InferenceResponseSender:
        """A sender that can answer the request at any time, in addition to or instead of `execute`'s return value."""
        if not self._serial:
            return InferenceResponseSender(None)
        return InferenceResponseSender(self._get_stream(host.get_host()))

    def _get_stream(self, server: host.Host) -> Stream:
        """The stream that all senders of the request share."""
        stream = self._stream
        if stream is None:
            with _streams:
                stream = self._stream
                if stream is None:
                    stream = self._stream = server.stream(self._serial, self._outputs)
                    if self._answered:
                        stream.end()
        return stream

    def _end(self) -> bool:
        """Close all senders, old and new. False if one of them has answered the request already."""
        with _streams:
            stream = self._stream
            if stream is None:
                self._answered = True
                return True
        return stream.end()

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request. Very cheap."""
        return self._serial > 0 and host.get_host().is_cancelled(self._serial)

    def set_release_flags(self, __flags: int) -> None:
        """TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, with None returned from `execute`: execute the request again."""
        self._release_flags = as_integer(__flags, "flags", UINT32)

    # Calling another model (BLS).

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...

    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...

    @overload
    def exec(self, decoupled: bool) -> Union[InferenceResponse, ResponseIterator]: ...

    def exec(self, decoupled: bool = False) -> Union[InferenceResponse, ResponseIterator]:
        """Send the request to the other model, and wait for its response.

        With `decoupled`, returns an iterator over its responses. Errors of the other model are in the response;
        TritonModelException is raised if BLS itself is not possible.
        """
        if type(decoupled) is not bool:
            decoupled = as_bool(decoupled, "decoupled")
        answers = _start(self, decoupled)
        if decoupled:
            return ResponseIterator(answers)
        response = answers.next()
        return _without_response() if response is None else response

    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> asyncio.Future[InferenceResponse]: ...

    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...

    @overload
    def async_exec(self, decoupled: bool) -> asyncio.Future[Any]: ...

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Like `exec`, but returns an awaitable, so that many calls may run at once. Cancelling it cancels the call.

        The call begins at once. With `decoupled` the awaitable is done when the first response is there; the iterator
        waits for each later one, and the event loop with it. Raises RuntimeError without a running event loop.
        """
        loop = asyncio.get_running_loop()
        if type(decoupled) is not bool:
            decoupled = as_bool(decoupled, "decoupled")
        answers = _start(self, decoupled)
        # A task, so that the call goes on even if nobody awaits it.
        task = loop.create_task(_answer(answers, decoupled))
        _tasks.add(task)
        task.add_done_callback(partial(_done, answers))
        return task


def _checked_correlation_id(correlation_id: Any) -> Union[int, str]:
    if isinstance(correlation_id, str):
        return as_text(correlation_id, "correlation_id")
    if not hasattr(correlation_id, "__index__"):
        raise TritonModelException("Correlation ID must be integer or string")
    return as_integer(correlation_id, "correlation_id", UINT64)


# All running tasks: asyncio itself has only weak references to them.
_tasks: Set[Any] = set()


def _done(answers: host.Answers, task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if task.cancelled():  # maybe before it ran, so its own code cannot cancel the call
        answers.cancel()


def _start(request: InferenceRequest, decoupled: bool) -> host.Answers:
    if request._serial:
        raise TritonModelException("a request that came to the model cannot be executed: make one with a model_name")
    server = host.get_host()
    if server.no_bls:
        raise TritonModelException(server.no_bls)
    return server.call(request, decoupled)


def _without_response() -> InferenceResponse:
    """The response to a call if a decoupled model has sent none."""
    return InferenceResponse(error=TritonError("the model ended the request without a response"))


async def _answer(answers: host.Answers, decoupled: bool) -> Union[InferenceResponse, ResponseIterator]:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        # The loop may be closed, or the future cancelled, when the answer comes.
        if not arrived.done():
            arrived.set_result(None)

    def wake_loop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine waits
            loop.call_soon_threadsafe(wake)

    answers.when_next(wake_loop)
    await arrived
    if decoupled:
        return ResponseIterator(answers)
    response = answers.next()
    return _without_response() if response is None else response
