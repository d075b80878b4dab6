# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The interface that the objects of `triton_python_backend_utils` use to call the server of their model.

In a stub, server.py implements it over the channel; in a unit test, `pyruntime.testing` does. Each registers itself
here, so the same classes work in both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set, Tuple

from pyruntime.stub.streams import Stream

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.stub.pb_utils.request import InferenceRequest
    from pyruntime.stub.pb_utils.response import InferenceResponse


class Answers:
    """The responses to one BLS call, as they arrive."""

    # Whether `next` has certainly returned the last one.
    finished = False

    def next(self) -> Optional[InferenceResponse]:
        """Wait for the next response; None if there are no more. Only one thread may call it at a time."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call. No effect after the last response."""
        raise NotImplementedError

    def when_next(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread or at once, as soon as `next` would not wait."""
        raise NotImplementedError


class Host:
    """The server of a model. All methods may be called from any thread."""

    # The result of get_model_dir().
    model_dir = ""
    # Whether the model may send any number of responses.
    decoupled = False
    # Triton's message why BLS is not possible now; "" if it is.
    no_bls = ""

    def respond(self, serial: int, response: Optional[InferenceResponse], wanted: Set[str], final: bool) -> None:
        """Send a response of a request with the `wanted` outputs; None sends only the end.

        Raises nothing if the client has disconnected or cancelled.
        """
        raise NotImplementedError

    def ended(self, serial: int) -> None:
        """A request is answered by execute and not by its sender, which may have begun to answer it."""

    def wait_for_room(self, serial: int) -> None:
        """Wait while the client has too many responses of a request to receive, if the server limits them.

        In a coroutine it does not wait, for the others: see backlog.py.
        """

    def has_room(self, serial: int) -> bool:
        """Whether `wait_for_room` would not wait."""
        return True

    def when_room(self, serial: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, from any thread or at once, as soon as `wait_for_room` would not wait."""
        wake()

    def stream(self, serial: int, wanted: Set[str]) -> Stream:
        """The stream that all senders of a request share."""
        return Stream(self, serial, wanted, self.decoupled, threading.RLock())

    def forgotten(self, serial: int, warning: str) -> None:
        """The model deleted an unfinished request and all its senders, of which the log has a warning.

        Safe in a destructor.
        """
        raise NotImplementedError

    def is_cancelled(self, serial: int) -> bool:
        """Whether the client has cancelled this request."""
        raise NotImplementedError

    def call(self, request: InferenceRequest, decoupled: bool) -> Answers:
        """Call another model with `request`. Reads everything from `request` before it returns."""
        raise NotImplementedError

    def ask(self, method: str, arguments: List[Any]) -> Any:
        """Call a function of the server and wait for its result. Raises TritonModelException with the server's reason.

        load_model(name, config: JSON text, files: {path: bytes}), unload_model(name, unload_dependents: bool),
        is_model_ready(name, version: text) -> bool,
        metric_family(name, description, kind: "counter" | "gauge" | "histogram") -> number,
        metric(family: number, labels: {str: str}, buckets: [float] or None) -> number,
        metric_value(metric: number) -> float,
        any function of server_queries.py(its arguments) -> bool, int or bytes
        """
        raise NotImplementedError

    def tell(self, method: str, arguments: List[Any]) -> None:
        """Call a function of the server without waiting. Safe in a destructor.

        drop_family(number), drop_metric(number),
        add_observations(metric: number, counts: [int] by bucket, total: float)
        """
        raise NotImplementedError

    def report_memory(self, usage: List[Tuple[int, int, int]]) -> None:
        """Say what memory the model uses from now on, for its statistics: kinds, devices, bytes."""

    def measure(self, metric: int, operation: str, value: float) -> None:
        """Perform "increment", "set" or "observe" on a metric, without waiting."""
        raise NotImplementedError

    def free_memory(self) -> int:
        """The free bytes for responses. Equal to an earlier value if all responses since then have been freed."""
        raise NotImplementedError

    def gpu_memory(self) -> Optional[Tuple[int, GpuMemory]]:
        """The number of the model's GPU in this process, and the memory on GPUs. None if the model is on no GPU.

        Raises GpuError if the process does not see it.
        """
        return None


_host: Optional[Host] = None


def _nobody() -> Optional[Host]:
    return None


_find: Callable[[], Optional[Host]] = _nobody


def set_host(host: Optional[Host]) -> Optional[Host]:
    """Set the server of all models of this process. Returns the previous one."""
    global _host
    before, _host = _host, host
    return before


def set_finder(find: Optional[Callable[[], Optional[Host]]]) -> None:
    """For a process without one server for all models: `find` returns the server of its caller, or None."""
    global _find
    _find = find or _nobody


def get_host() -> Host:
    """The server. Raises TritonModelException if there is none."""
    if _host is not None:
        return _host
    found = _find()
    if found is None:
        from pyruntime.stub.pb_utils.errors import TritonModelException  # whose package imports this module

        raise TritonModelException(
            "this is not possible outside a model, nor before its initialize: there is no server to ask"
        )
    return found
