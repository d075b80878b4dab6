# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs native backends in this process: see triton/. runtime/instances/native/instance.py uses it.

For the backends that it loads, the module is libtritonserver.so. Backends run on threads that never take the GIL, and
`drain` returns their events. Functions documented as blocking do so without the GIL: call them on a thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

# The order of the fields of an encoded request and of its tensors, as in utils/request_codec.py.
REQUEST_FIELDS: Final[tuple[str, ...]]
TENSOR_FIELDS: Final[tuple[str, ...]]

# Kinds of events: the first element of each tuple. The comment of each kind lists the other elements.
# job, final: bool, failure: (code, message) | None, outputs: [(name, datatype, shape, Buffer)] | None, parameters: dict
# | None. Without failure and outputs it is no response, and only marks the end. In place of a Buffer may be the owner
# of memory of a GPU: see Call.answer.
RESPONSE: Final[int]
# job, reschedule: bool, statistics: (success, exec start, compute start, compute end, exec end; ns) | None.
RELEASED: Final[int]
# instance owner, (serial of the batch, start ns, end ns, the tuple of BATCH_STATISTICS | None | False): Execute has
# returned. False: it failed, and has reported no batch.
EXECUTED: Final[int]
# instance owner, (rows, exec start, compute start, compute end, exec end; ns).
BATCH_STATISTICS: Final[int]
# instance owner, key, kind: "success" | "fail" | "empty" | "cancel", start ns, output start ns, end ns.
RESPONSE_STATISTICS: Final[int]
# job, name, datatype, shape, Buffer: a state that the backend has updated.
STATE: Final[int]
# level: 0 error, 1 warning, 2 info, 3 verbose; file, line, message.
LOG: Final[int]
# Call: native code calls the server.
CALL: Final[int]
# job | None, ns, activity, name: a backend's report about a traced request.
ACTIVITY: Final[int]
# job, failure, outputs, parameters, statistics, the tuple of EXECUTED | None: a final RESPONSE and RELEASED in one
# event; for a plain request EXECUTED too.
ANSWERED: Final[int]
# job, response: bytes, statistics, the tuple of EXECUTED | None: ANSWERED for a plain request, with an encoded
# response, because that is plain.
ENCODED: Final[int]
# job, rest: bytes | None, ns, released: bool, statistics | None, the tuple of EXECUTED | None: a native thread sent the
# response of a plain request to its client at that time, except for the rest. This event alone does not make the
# descriptor readable; but it is in the queue before the client can send its next request.
SENT: Final[int]

# connection. A lent connection must be taken back: its client has disconnected, or sent another request.
RETURNED: Final[int]
# instance owner, count, rows, sums: (queue, compute input, compute infer, compute output, from arrival to response; of
# the batches compute input, compute infer, compute output; Execute; ns). `count` requests of lent connections have
# ended, each a batch of `rows` rows. This event alone does not make the descriptor readable.
COUNTED: Final[int]
# The items of RESPONSE: a response of an execution after which the request was rescheduled. It may be executed again
# already, and may be over.
EARLIER_RESPONSE: Final[int]

class NativeError(Exception):
    """A backend failed, or a system call for it: `args` are the code (see utils/errors.py) and the message."""

class Buffer:
    """The contents of an output, in memory of its own. Writable."""

    @property
    def address(self) -> int:
        """The address in an OutputRegion, for other processes; 0 if the memory is this process's."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Call:
    """A call from native code to the server: see runtime/instances/native/calls.py.

    `method` is "infer", "cancel", or the name of a function of the C interface without TRITONSERVER_. Native code waits
    for all but "cancel". A call that Python drops without an answer fails. "OutputBuffer", with the number of a GPU and
    a size in bytes, is for an output that may be on a GPU: see Instance.execute.
    """

    @property
    def method(self) -> str: ...
    @property
    def arguments(self) -> tuple[Any, ...]: ...
    def answer(self, result: bool | int | bytes | tuple[int, object] | None, /) -> None:
        """Return the result. For "infer" it is None: the request is accepted, and its inputs are copied.

        For "OutputBuffer" it is the pointer to the memory and its owner, to which native code refers until the response
        is an event, or is deleted; None for memory of the host.
        """

    def fail(self, code: int, message: str, /) -> None:
        """Return an error. A refused request still belongs to its creator."""

    def respond(
        self,
        final: bool,
        outputs: Sequence[tuple[str, str, Sequence[int], object]] | None,
        parameters: dict[str, str | int | bool | float],
        failure: tuple[int, str] | None,
        model: str,
        version: int,
        done: Callable[[], object] | None,
        /,
    ) -> None:
        """Answer an "infer" with one response, or with none if both `outputs` and `failure` are None.

        Another thread copies the outputs, and holds their buffers until then; afterwards `drain` calls `done`.
        """

def set_hurried(hurried: bool, /) -> None:
    """Set whether every event makes the descriptor readable, also those that wait already. Calls are counted."""

def set_response_window(responses: int, size: int, /) -> None:
    """Limit how far a backend may be ahead of the client of a future request: see triton/response_window.h.

    `size` is in bytes. There is no limit before this is called.
    """

def accept_calls(accepting: bool, /) -> None:
    """Set whether calls are accepted, as initially. If not, waiting calls fail now, and later ones at once."""

class Backend:
    """A backend's library. `policy` is 0 for blocking, 1 for device-blocking.

    For backends, models and instances alike: one that fails to initialise is finalised at once, as in Triton, and
    unusable. `finalize` has no effect on one that is finalised or was never initialised.
    """

    def __init__(self, name: str, path: str, directory: str, config: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with the loader's message."""

    def initialize(self) -> None:
        """After `open`. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

    @property
    def policy(self) -> int: ...
    @property
    def preferred_groups(self) -> list[tuple[int, int, list[int]]]:
        """(kind as TRITONSERVER_InstanceGroupKind, count, devices), for models that configure no groups."""

    @property
    def parallel_loading(self) -> bool:
        """Whether instances may be initialised at the same time."""

class Model:
    """One version of one model. `outputs` are the names of all its outputs.

    An `iterative` model may reschedule requests; `states` are the states of its sequences, as (name, datatype, shape,
    name of the input whose memory it shares or ""), with -1 for any size.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        version: int,
        folder: str,
        config: str,
        auto_complete: bool,
        decoupled: bool,
        outputs: Sequence[str],
        iterative: bool = False,
        states: Sequence[tuple[str, str, list[int], str]] = (),
    ) -> None: ...
    def initialize(self, complete: Callable[[str], str | tuple[int, str]] | None = None, /) -> None:
        """Blocks. Raises NativeError.

        `complete` is called, in the thread of the backend, with the configuration (JSON) that the backend sets. It
        returns the configuration that the backend reads from then on, or an error code and a message. Without it the
        backend cannot set any.
        """

    def finalize(self) -> None:
        """Blocks. Raises NativeError, also while it has instances that are not finalised."""

    def configure(
        self,
        config: str,
        decoupled: bool,
        outputs: Sequence[str],
        iterative: bool = False,
        states: Sequence[tuple[str, str, list[int], str]] = (),
        /,
    ) -> None:
        """Set the final configuration: normalised after the backend completed it."""

    def set_config(self, config: str, /) -> None:
        """Replace the text of the configuration, also while instances execute: only its instance groups changed."""

    @property
    def memory_usage(self) -> list[tuple[int, int, int]]:
        """The memory of the model, as its backend reports it: (kind as TRITONSERVER_MemoryType, id, bytes)."""

class ClientSocket:
    """A connection to which native threads may send responses, with a descriptor of its own. Raises OSError."""

    def __init__(self, descriptor: int) -> None: ...
    def shut_down(self) -> None:
        """Send no more: the connection is closed."""

class PlainRequests:
    """What a model declares, by which its plain requests are read and its plain responses written.

    An input is its name, its datatype, the size of its elements in bytes (0 for BYTES), its shape, and whether it is
    required; an output its name, its datatype and its shape. -1 in a shape is any size.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[tuple[str, str, int, Sequence[int], bool]],
        outputs: Sequence[tuple[str, str, Sequence[int]]],
        max_batch_size: int,
    ) -> None: ...

class LentConnection:
    """A connection that an instance reads: see `Instance.lend`. It must be taken back before the instance ends."""

    @property
    def begun(self) -> int:
        """The number of its requests that have begun."""

    def take_back(self) -> bytes:
        """Take it back. Returns the part of the next request that was read. A running request is adopted before."""

class Instance:
    """One instance. Its events contain `owner`, to which it has a strong reference.

    An instance that was not finalised is never freed, because its backend may still use it. Its events are lost.
    """

    def __init__(
        self,
        model: Model,
        owner: object,
        name: str,
        kind: int,
        device_id: int,
        passive: bool,
        profiles: Sequence[str],
        secondary_devices: Sequence[tuple[str, int]],
        host_policy: str,
    ) -> None: ...
    def initialize(self) -> None:
        """Blocks. Raises NativeError. Runs on the instance's thread, like all other steps but `is_ready`."""

    def execute(
        self, jobs: Sequence[object], wires: list[list[object]], serial: int, base: int, wake: bool = True
    ) -> None:
        """Queue a batch for the backend. `wires` are from utils/request_codec.py, with parameters as a dict or "".

        In place of the places of a wire, which are for stubs, may be an OutputRegion for the large outputs, or a tuple
        of the names of the outputs that may be on a GPU.

        The contents of a tensor lie at `base` + its offset, and must stay there until its job is RELEASED.
        """

    def execute_plain(
        self,
        plain: PlainRequests,
        job: object,
        data: bytes,
        at: int,
        document_length: int,
        serial: int,
        client: ClientSocket | None,
        /,
    ) -> tuple[int, str] | None:
        """Queue the request with the body at `at` in `data` as a batch of its own, without waking the backend.

        Its rows and its id; None if it is not plain, or no request is accepted. Copies its inputs. The backend's thread
        may send the response to `client` directly, and Python then learns of it later: see SENT.
        """

    def lend(
        self, plain: PlainRequests, connection: object, data: bytes, client: ClientSocket, /
    ) -> LentConnection | None:
        """Execute the request in `data`, and read more plain requests to the same target from the client.

        None if the request is not plain, or there are no descriptors. `data` is exactly one request. If a later one is
        not plain or to another target, or another one follows it before it is answered, or the client disconnects, the
        connection is RETURNED with all bytes of that request. If a response is not plain, or is not sent when Execute
        returns, `connection.adopt(serial, arrived ns, id, rows)` creates a job for the request, which has the usual
        events, and takes the connection back. `drain` and `take_back` call `adopt`, which must call neither.
        """

    def claim(self, serial: int, /) -> bool:
        """Keep native threads from answering a plain request. False if one has: the next `drain` returns SENT."""

    def wake(self) -> None:
        """Wake the backend for batches that were queued without waking it, because waking is the largest cost."""

    def cancel(self, serial: int) -> None:
        """Mark a request as cancelled for the backend."""

    def take(self, serial: int, /) -> None:
        """The client has received one of several responses to a request, other than the last one.

        A backend's thread that sends one waits while the client has too many to receive: see triton/response_window.h.
        The wait also ends when the request is cancelled or the instance is finalised.
        """

    def is_ready(self) -> str | None:
        """None if the backend reports the instance as ready, or reports nothing; else the reason. Blocks.

        Calls the backend on the caller's thread, so that it can answer while it executes.
        """

    def finalize(self) -> None:
        """Finalise it after all queued batches. Blocks. Raises NativeError. The instance accepts no more batches."""

    @property
    def memory_usage(self) -> list[tuple[int, int, int]]:
        """Like that of a model, for the memory of the instance."""

class OutputRegion:
    """A region of shared memory in which native code allocates large outputs, for requests that come with it.

    It keeps a descriptor and a mapping of its own until it and all outputs in it are gone.
    """

    def __init__(
        self, descriptor: int, size: int, first_address: int, cgroups: Sequence[tuple[str, str, str, Sequence[str]]]
    ) -> None:
        """`size` is that of the region, and `first_address` its address: see utils/addresses.py.

        `cgroups` limit how much memory it may use: see utils/memory_left.py. Raises OSError.
        """

class Agent:
    """A repository agent's library."""

    def __init__(self, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with the loader's message."""

    def initialize(self) -> None:
        """After `open`. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

class AgentModel:
    """A model of a repository agent: its folder, its configuration (JSON), and the agent's parameters in it."""

    def __init__(self, agent: Agent, location: str, config: str, parameters: Sequence[tuple[str, str]]) -> None: ...
    def initialize(self) -> None:
        """Blocks. Raises NativeError."""

    def act(self, action: int, /) -> None:
        """Notify the agent of an action on the model: a TRITONREPOAGENT_ActionType. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError. Removes the temporary folder of the agent, if it requested one."""

    @property
    def location(self) -> str:
        """The folder of the model, which the agent may have replaced."""

class BatchStrategy:
    """A library with the batching strategy of a model."""

    def __init__(self, model: Model, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError if that fails, or if the library lacks functions."""

    def initialize(self) -> None:
        """After `open`, and after the model. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

    def begin(self) -> None:
        """Begin a batch. Raises NativeError."""

    def include(self, wire: list[object], base: int, /) -> bool:
        """Whether a request may join the batch; see Instance.execute. Raises NativeError."""

    def end(self) -> None:
        """End the batch. Raises NativeError."""

class Cache:
    """A response cache's library. Any number of threads may call it at the same time."""

    def __init__(self, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with the loader's message."""

    def initialize(self, config: str, /) -> None:
        """After `open`. `config` has its settings, as JSON. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError. No other method may be called afterwards."""

    def lookup(self, key: str, /) -> list[Buffer] | None:
        """A copy of the entry of a key, None if there is none. Blocks. Raises NativeError."""

    def insert(self, key: str, contents: bytes, /) -> bool:
        """Insert an entry under a key; False if the key has one. Blocks. Raises NativeError."""

def descriptor() -> int:
    """A descriptor that is readable while there are events."""

def drain() -> list[tuple[Any, ...]]:
    """All events so far, in order."""

def set_log(levels: int, verbose: int) -> None:
    """Set the levels that native code logs: bit 0 error, 1 warning, 2 info; and the verbose level."""

def set_memory_pools(pinned: int, gpus: dict[int, int], /) -> None:
    """Set the sizes, in bytes, of the pools of pinned memory and of memory of GPUs, by number; 0 for none.

    GPUs that are not named have pools of 64 MiB. Pools that backends have used already keep their sizes.
    """

def pinned_memory() -> tuple[int, int]:
    """The size of the pool of pinned memory and what is in use, in bytes; 0 before a backend has asked for any."""

def trace_crashes() -> None:
    """From now on, write the native stack of the thread at a crash, before other handlers of crashes run."""

def reset_at_fork(signum: int, /) -> None:
    """From now on, let this signal end the processes that native code forks, although this process handles it."""

_MetricValue: TypeAlias = float | tuple[list[float], list[int], float, int]

def metrics() -> list[tuple[str, int, str, list[tuple[dict[str, str], _MetricValue]]]]:
    """The families that native code created: name, kind, description, and the labels and value of each metric.

    A histogram's value is (bucket bounds, cumulative counts, sum, count).
    """

def view(address: int, size: int, owner: object) -> memoryview:
    """A readable view of native memory, which keeps `owner` alive."""
