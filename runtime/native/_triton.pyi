# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native backends in this process: see triton/, and runtime/instances/native/instance.py for who uses it.

The module is libtritonserver.so to the backends that it loads. Backends run on threads that never take the GIL; what
happens on them comes out of `drain`. Functions that say so block, without the GIL: call them on a thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

# What stands where in a request, and in a tensor of it: as in utils/request_codec.py.
REQUEST_FIELDS: Final[tuple[str, ...]]
TENSOR_FIELDS: Final[tuple[str, ...]]

# Kinds of events, the first element of each tuple, and what follows it:
# job, final: bool, failure: (code, message) | None, outputs: [(name, datatype, shape, Buffer)] | None, parameters: dict
# | None. Neither failure nor outputs: no response, only the news that there will be no more.
RESPONSE: Final[int]
# job, reschedule: bool, statistics: (success, exec start, compute start, compute end, exec end; ns) | None.
RELEASED: Final[int]
# instance owner, (serial of the batch, start ns, end ns, what BATCH_STATISTICS has | None): Execute has returned.
EXECUTED: Final[int]
# instance owner, (rows, exec start, compute start, compute end, exec end; ns).
BATCH_STATISTICS: Final[int]
# instance owner, key, kind: "success" | "fail" | "empty" | "cancel", start ns, output start ns, end ns.
RESPONSE_STATISTICS: Final[int]
# job, name, datatype, shape, Buffer: a state that the backend has updated.
STATE: Final[int]
# level: 0 error, 1 warning, 2 info, 3 verbose; file, line, message.
LOG: Final[int]
# Call: native code wants something of the server.
CALL: Final[int]
# job | None, ns, activity, name: what a backend reports of a traced request.
ACTIVITY: Final[int]
# job, failure, outputs, parameters, statistics, what EXECUTED has behind its owner | None: in one RESPONSE, which is
# final, and RELEASED; and of a known request EXECUTED as well.
ANSWERED: Final[int]
# job, response: bytes, statistics, and what EXECUTED has behind its owner | None: ANSWERED of a known request whose
# response is like the one that is remembered.
ENCODED: Final[int]
# job, rest: bytes | None, ns, released: bool, statistics | None, what EXECUTED has behind its owner | None: the client
# of a known request was sent its response at that time, but for the rest. The descriptor is not readable for that
# alone; but whoever reads what the client sends next finds the event.
SENT: Final[int]

# connection. One that was lent is to be taken back: its client is gone, or has sent something else.
RETURNED: Final[int]
# instance owner, count, rows, sums: (queue, compute input, compute infer, compute output, from arrival to response; of
# the batches compute input, compute infer, compute output; Execute; ns). So many requests of lent connections are over,
# each of which had so many rows and was a batch. The descriptor is not readable for that alone.
COUNTED: Final[int]

class NativeError(Exception):
    """A backend, or the system for it, has failed: `args` are the code (see utils/errors.py) and the message."""

class Buffer:
    """Contents of an output: memory that is the output's own. Writable."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Call:
    """Something that native code wants of the server: see runtime/instances/native/calls.py.

    `method` is "infer", "cancel", or the name of a function of the C interface without TRITONSERVER_. All but "cancel"
    are waited for. One that Python lets go of without an answer fails.
    """

    @property
    def method(self) -> str: ...
    @property
    def arguments(self) -> tuple[Any, ...]: ...
    def answer(self, result: bool | int | bytes | None, /) -> None:
        """Give the result. For "infer" it is None, and says that the request is taken, and its inputs are copied."""

    def fail(self, code: int, message: str, /) -> None:
        """Say why there is none. A request that is refused stays its maker's."""

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
        """For "infer", when it is answered: one response; no `outputs` and no `failure` if there is none.

        Outputs are copied on another thread. Their buffers are held until then; `done` is called by `drain` after that.
        """

def set_hurried(hurried: bool, /) -> None:
    """Whether the descriptor is to be readable with every event, at once if there are any. Calls are counted."""

def set_response_window(responses: int, size: int, /) -> None:
    """How far a backend may be ahead of the client of a request that begins from now on: see triton/response_window.h.

    `size` is in bytes. There is no limit before this is called.
    """

def accept_calls(accepting: bool, /) -> None:
    """Whether calls are answered, as they are at first. If not, those that wait fail now, and all others at once."""

class Backend:
    """A backend's library. `policy` is 0 for blocking, 1 for device-blocking.

    This holds of backends, models and instances: what fails to initialise is finalised at once, as Triton does it, and
    is of no use then. What was finalised, or never initialised, is not finalised by `finalize`.
    """

    def __init__(self, name: str, path: str, directory: str, config: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with what the loader says."""

    def initialize(self) -> None:
        """After `open`. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

    @property
    def policy(self) -> int: ...
    @property
    def preferred_groups(self) -> list[tuple[int, int, list[int]]]:
        """(kind as TRITONSERVER_InstanceGroupKind, count, devices), for models that say nothing of theirs."""

    @property
    def parallel_loading(self) -> bool:
        """Whether instances may be initialised at the same time."""

class Model:
    """One version of one model. `outputs` are the names of all that it has.

    An `iterative` one may have its requests executed again; `states` are those of its sequences, as (name, datatype,
    shape), with -1 for any size.
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
        states: Sequence[tuple[str, str, list[int]]] = (),
    ) -> None: ...
    def initialize(self) -> None:
        """Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError, also while instances of it are not finalised."""

    @property
    def config(self) -> str | None:
        """The configuration (JSON) as the backend has completed it, None if it has not."""

    def configure(
        self,
        config: str,
        decoupled: bool,
        outputs: Sequence[str],
        iterative: bool = False,
        states: Sequence[tuple[str, str, list[int]]] = (),
        /,
    ) -> None:
        """The configuration is final: normalised after the backend completed it."""

    @property
    def memory_usage(self) -> list[tuple[int, int, int]]:
        """(kind as TRITONSERVER_MemoryType, id, bytes) of what the model takes, as its backend says; often nothing."""

class ClientSocket:
    """A connection in which native threads may send responses; it has a descriptor of its own. Raises OSError."""

    def __init__(self, descriptor: int) -> None: ...
    def shut_down(self) -> None:
        """Send nothing any more: the connection is closed."""

class KnownRequest:
    """What requests to a model have in common that differ in nothing but the contents of their tensors.

    Their bodies are `size` bytes long and begin with `document`; `wire` is as a request for `Instance.execute`, with
    the addresses counted from the end of the document, and no id.
    """

    def __init__(self, model: Model, document: bytes, size: int, wire: list[object]) -> None: ...
    def remember(self, head: bytes, outputs: Sequence[tuple[str, str, Sequence[int], int]], /) -> None:
        """Encode responses whose outputs have these names, datatypes, shapes and sizes: `head`, then contents."""

class LentConnection:
    """A connection that an instance reads by itself: see `Instance.lend`. It must be taken back before that ends."""

    @property
    def begun(self) -> int:
        """How many of its requests have begun."""

    def take_back(self) -> bytes:
        """Have it back: what was read of the next request. What is under way is adopted before this returns."""

class Instance:
    """One instance. `owner` comes back with its events; it is held weakly in no way: the instance holds it.

    One that was not finalised is never freed, for its backend may still use it. Its events are lost.
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
        """Blocks. Raises NativeError. Runs on the instance's thread, as all that follows but `is_ready`."""

    def execute(
        self, jobs: Sequence[object], wires: list[list[object]], serial: int, base: int, wake: bool = True
    ) -> None:
        """Give the backend a batch; `wires` as utils/request_codec.py encodes them, parameters a dict or "".

        A tensor's contents lie at `base` + its offset, and stay there until its job is RELEASED.
        """

    def execute_known(
        self, known: KnownRequest, job: object, data: bytes, at: int, serial: int, client: ClientSocket | None, /
    ) -> bool:
        """Give the backend the request in the body that begins at a place in `data`, without waking it; alone.

        False if it is none of those that are known, or no request can be taken. Its inputs are copied. A `client` may
        be sent the response by the thread that makes it, which is heard of late then: see SENT.
        """

    def lend(
        self, known: KnownRequest, connection: object, data: bytes, at: int, rows: int, client: ClientSocket, /
    ) -> LentConnection | None:
        """Execute the request in `data`, whose body begins at a place in it, and read the client for more like it.

        None if it is not known, or its response is not, or there are no descriptors. All of `data` is the request.
        Where the head, or the document, of a later one differs in anything, or the client is gone, the connection is
        RETURNED; where the response does, or is not sent when Execute returns, `connection.adopt(serial, arrived ns)`
        makes a job of the request, of which everything is told as of others, and has the connection back. It is called
        by `drain` and `take_back`, and must call neither.
        """

    def claim(self, serial: int, /) -> bool:
        """Have no native thread answer a known request. False if one has: SENT comes with the next `drain`."""

    def wake(self) -> None:
        """Have the backend begin with what `execute` has given it without waking it: that is what costs most."""

    def cancel(self, serial: int) -> None:
        """Let the backend see that nobody waits for a request."""

    def take(self, serial: int, /) -> None:
        """The client has taken one of many responses to a request, other than the last one.

        A thread of the backend's that sends one waits while too many are not taken: see triton/response_window.h. It
        waits for them no longer once the request is cancelled, or the instance is finalised.
        """

    def is_ready(self) -> str | None:
        """None if the backend says that the instance is ready, or says nothing; else why not. Blocks.

        The backend is asked on the caller's thread, so that it can answer while it executes.
        """

    def finalize(self) -> None:
        """After what was given before. Blocks. Raises NativeError. The instance takes nothing more."""

    @property
    def memory_usage(self) -> list[tuple[int, int, int]]:
        """As of a model, for what the instance takes."""

class Agent:
    """A repository agent's library."""

    def __init__(self, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with what the loader says."""

    def initialize(self) -> None:
        """After `open`. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

class AgentModel:
    """A model as a repository agent sees it: its folder, its configuration (JSON), and what that has for the agent."""

    def __init__(self, agent: Agent, location: str, config: str, parameters: Sequence[tuple[str, str]]) -> None: ...
    def initialize(self) -> None:
        """Blocks. Raises NativeError."""

    def act(self, action: int, /) -> None:
        """Tell the agent what happens to the model: a TRITONREPOAGENT_ActionType. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError. The folder that the agent was given, if it was given one, is gone after that."""

    @property
    def location(self) -> str:
        """The folder of the model, where the agent has put it."""

class BatchStrategy:
    """A library that says which requests of a model are executed together."""

    def __init__(self, model: Model, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError if it cannot be, or lacks functions."""

    def initialize(self) -> None:
        """After `open`, and after the model. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError."""

    def begin(self) -> None:
        """Begin a batch. Raises NativeError."""

    def include(self, wire: list[object], base: int, /) -> bool:
        """Whether a request is to join the batch; see Instance.execute. Raises NativeError."""

    def end(self) -> None:
        """End the batch. Raises NativeError."""

class Cache:
    """A response cache's library. It may be asked on any number of threads at once."""

    def __init__(self, path: str) -> None: ...
    def open(self) -> None:
        """Open the library. Blocks. Raises NativeError with what the loader says."""

    def initialize(self, config: str, /) -> None:
        """After `open`; `config` is its settings, as JSON. Blocks. Raises NativeError."""

    def finalize(self) -> None:
        """Blocks. Raises NativeError. Nothing may be asked after that."""

    def lookup(self, key: str, /) -> list[Buffer] | None:
        """A copy of what is kept for a key, None if nothing is. Blocks. Raises NativeError."""

    def insert(self, key: str, contents: bytes, /) -> bool:
        """Have something kept for a key; False if something is already. Blocks. Raises NativeError."""

def descriptor() -> int:
    """Readable while there are events."""

def drain() -> list[tuple[Any, ...]]:
    """All events so far, in order."""

def set_log(levels: int, verbose: int) -> None:
    """Which levels native code is to log: bit 0 error, 1 warning, 2 info; and the verbose level."""

def trace_crashes() -> None:
    """From now on have a crash tell where the thread's native code was, before whoever else is to tell of it."""

def reset_at_fork(signum: int, /) -> None:
    """From now on have this signal kill the processes that native code forks, though it does not kill this one."""

_MetricValue: TypeAlias = float | tuple[list[float], list[int], float, int]

def metrics() -> list[tuple[str, int, str, list[tuple[dict[str, str], _MetricValue]]]]:
    """Families that native code has made: name, kind, description, and each metric's labels and value.

    A histogram's value is (bucket bounds, cumulative counts, sum, count).
    """

def view(address: int, size: int, owner: object) -> memoryview:
    """Native memory, readable; `owner` is kept alive with it."""
