# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the objects of `triton_python_backend_utils` ask of the server that a model runs in.

In a stub the server is at the other end of the channel (see server.py); in a unit test it is played by
`pyruntime.testing`. Either registers itself here, and the same classes work in both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set

from pyruntime.stub.streams import Stream

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.request import InferenceRequest
    from pyruntime.stub.pb_utils.response import InferenceResponse


class Answers:
    """The responses to one BLS call, as they come."""

    # Whether it is known that `next` has given the last one.
    finished = False

    def next(self) -> Optional[InferenceResponse]:
        """The next response, waiting for it; None when there are no more. From one thread at a time."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Nobody waits for more of them. Does nothing after the last one."""
        raise NotImplementedError

    def when_next(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread or at once, as soon as `next` would not wait."""
        raise NotImplementedError


class Host:
    """See the module. All methods may be called from any thread."""

    # What get_model_dir() says.
    model_dir = ""
    # Whether the model may send any number of responses.
    decoupled = False
    # Why BLS is not possible now, in Triton's words; "" where it is.
    no_bls = ""

    def respond(self, serial: int, response: Optional[InferenceResponse], wanted: Set[str], final: bool) -> None:
        """Send a response of a request, of its outputs those that are `wanted`; None to say only that it is over.

        Never raises for what the client does.
        """
        raise NotImplementedError

    def ended(self, serial: int) -> None:
        """A request is answered by other means than a sender, which may have begun to answer it."""

    def wait_for_room(self, serial: int) -> None:
        """Wait while the client has too many responses of a request to take, if there is such a limit."""

    def has_room(self, serial: int) -> bool:
        """Whether `wait_for_room` would not wait."""
        return True

    def stream(self, serial: int, wanted: Set[str]) -> Stream:
        """What the senders of a request share."""
        return Stream(self, serial, wanted, self.decoupled, threading.RLock())

    def forgotten(self, serial: int) -> None:
        """The model has let go of a request, and of its senders, that was never finished. Safe in a destructor."""
        raise NotImplementedError

    def is_cancelled(self, serial: int) -> bool:
        """Whether nobody waits for this request any longer."""
        raise NotImplementedError

    def call(self, request: InferenceRequest, decoupled: bool) -> Answers:
        """Have another model execute `request`, of which everything is read before this returns."""
        raise NotImplementedError

    def ask(self, method: str, arguments: List[Any]) -> Any:
        """Ask the server something and wait for the answer. Raises TritonModelException with its reason.

        load_model(name, config: JSON text, files: {path: bytes}), unload_model(name, unload_dependents: bool),
        is_model_ready(name, version: text) -> bool,
        metric_family(name, description, kind: "counter" | "gauge" | "histogram") -> number,
        metric(family: number, labels: {str: str}, buckets: [float] or None) -> number,
        metric_value(metric: number) -> float,
        any function of server_queries.py(its arguments) -> bool, int or bytes
        """
        raise NotImplementedError

    def tell(self, method: str, arguments: List[Any]) -> None:
        """Tell the server something, without waiting; safe in a destructor.

        drop_family(number), drop_metric(number),
        add_observations(metric: number, counts: [int] by bucket, total: float)
        """
        raise NotImplementedError

    def measure(self, metric: int, operation: str, value: float) -> None:
        """Do "increment", "set" or "observe" with a metric, without waiting."""
        raise NotImplementedError

    def free_memory(self) -> int:
        """How many bytes are free for responses: as many as before when nothing of what was sent is left."""
        raise NotImplementedError


_host: Optional[Host] = None


def _nobody() -> Optional[Host]:
    return None


_find: Callable[[], Optional[Host]] = _nobody


def set_host(host: Optional[Host]) -> Optional[Host]:
    """From now on this is the server of all models of this process; returns who was."""
    global _host
    before, _host = _host, host
    return before


def set_finder(find: Optional[Callable[[], Optional[Host]]]) -> None:
    """Where there is no one server for all of this process, `find` says who is that of the caller; None if nobody."""
    global _find
    _find = find or _nobody


def get_host() -> Host:
    """The server. Raises TritonModelException where there is none."""
    if _host is not None:
        return _host
    found = _find()
    if found is None:
        from pyruntime.stub.pb_utils.errors import TritonModelException  # whose package imports this module

        raise TritonModelException(
            "this is not possible outside a model, nor before its initialize: there is no server to ask"
        )
    return found
