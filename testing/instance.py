# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One model under test, from its import to its finalize: a stub without a process of its own.

It uses the stub's code to execute batches, validate responses and run coroutines. It adds a thread for the model, a
replacement of the server, and the removal of the model's modules afterwards.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar, cast

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import request_options
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.runtime.scheduling.controls import Controls
from pyruntime.stub.batches import Batches
from pyruntime.stub.loader import describe, load_class
from pyruntime.stub.worker import NO_BLS
from pyruntime.testing import process
from pyruntime.testing.callees import Callees, Function
from pyruntime.testing.configuration import choose_version, complete, import_folders, initialize_args, locate
from pyruntime.testing.control import Control
from pyruntime.testing.exchange import Exchange
from pyruntime.testing.modules import OwnModules
from pyruntime.testing.request import Request
from pyruntime.testing.runner import Runner, StillRunning
from pyruntime.testing.server import ModelServer
from pyruntime.testing.states import initial_states
from pyruntime.testing.tensors import OwnMemory, tensor_ref
from pyruntime.utils.errors import InferenceError, LoadError
from pyruntime.utils.messages import Failed, Infer
from pyruntime.utils.request_codec import WireRequest

# After a timeout, the model gets this many seconds more to notice that it is cancelled.
_AFTER_TIMEOUT_S = 2.0

T = TypeVar("T")


class _TracedBatches(Batches):
    """Passes the exception behind a failure to the test's server."""

    def _failure(self, exc: BaseException) -> str:
        text = super()._failure(exc)
        cast(ModelServer, self.server).raised(exc, text)
        return text


class Instance:
    """See the module. `model` is the TritonPythonModel. All methods are for any thread but the model's own."""

    def __init__(
        self,
        draft: Draft,
        version: int | None,
        callees: Mapping[str, Function | Instance],
        backend_directories: Sequence[str],
        timeout_s: float,
    ) -> None:
        """Load the model. Raises LoadError; TimeoutError if a step of it takes longer than `timeout_s` seconds."""
        self.name = draft.folder.name
        self.version = choose_version(draft, version)
        self.timeout_s = timeout_s
        self.control = Control(lambda name, version: self.callees.has(name, version))
        self.callees = Callees(callees, self.control.is_ready, lambda: self._modules.come_first())
        self.spec: ModelSpec
        self.model: Any = None
        self._controls: Controls
        self._server: ModelServer
        self._batches: Batches
        self._is_closed = False
        self._is_stuck = False
        location = locate(draft, self.version, backend_directories)
        newest = locate(draft, draft.newest, backend_directories)
        self._root = location.get("backend_dir") or location["model_dir"]
        self._modules = OwnModules(import_folders(location))
        self._runner = Runner(f"model {self.name}", lambda message: self._server.handle(message))
        try:
            model_class = self._step("import", lambda: self._import(draft, location, newest))
            self._controls = Controls(self.spec)
            self._server = ModelServer(
                self.spec,
                os.path.join(location["model_dir"], location["version"]),
                self._modules,
                self.callees,
                self.control,
                lambda message: self._runner.post(lambda: self._execute(message)),
            )
            args = initialize_args(draft, self.spec, self.version)
            self._step("initialize", lambda: self._initialize(model_class, args))
        except BaseException:
            self._end()
            raise

    @property
    def module(self) -> ModuleType:
        """The module of the model's class."""
        return self._modules.modules[type(self.model).__module__]

    # Requests.

    def start(self, requests: Sequence[Request]) -> list[Exchange]:
        """Execute these requests in one batch. Those that the server would refuse are answered at once."""
        return self._post([self._accept(request, partial(request.checked, self.spec)) for request in requests])

    def begin(self, request: InferRequest) -> Exchange:
        """Execute a request of another model."""

        def checked() -> InferRequest:
            check_request(self.spec, request)
            return request

        return self._post([self._accept(Request({}, request_id=request.id), checked)])[0]

    def is_ready(self) -> bool:
        """The result of the model's `is_ready`; True if it has none. Raises TypeError if the result is no bool."""

        def ask() -> Any:
            ready = self.model.is_ready()
            return self._runner.coroutines.run(ready) if inspect.isawaitable(ready) else ready

        if not callable(getattr(self.model, "is_ready", None)):
            return True
        ready = self._call("is_ready", ask)
        if type(ready) is not bool:
            raise TypeError(f"is_ready() must return a boolean value, found {ready!r}")
        return ready

    def close(self) -> None:
        """Cancel all unanswered requests, wait until the model has answered them, and finalize it. Idempotent.

        Raises TimeoutError if the model does not end, and any exception of `finalize`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._drain()
            self._server.no_bls = NO_BLS
            if hasattr(self.model, "finalize"):
                self._call("finalize", self.model.finalize)
        finally:
            self._end()

    # Loading, in the model's thread.

    def _import(self, draft: Draft, location: dict[str, str], newest: dict[str, str]) -> Any:
        if location == newest:
            model_class = load_class(location)
            self.spec = complete(draft, model_class)
            return model_class
        # The server imports the newest version for auto_complete_config, and uses the result for all versions.
        with OwnModules(import_folders(newest)).active():
            self.spec = complete(draft, load_class(newest))
        return load_class(location)

    def _initialize(self, model_class: Any, args: dict[str, str]) -> None:
        self._batches = _TracedBatches(
            self._runner.link,
            self._server.writer,
            OwnMemory(),
            args["model_instance_name"],
            self._root,
            set(self.spec.outputs),
            self.spec.decoupled,
        )
        self._batches.server = cast(Any, self._server)
        process.begin(self._server, self._modules)
        self.model = self._batches.model = model_class()
        if hasattr(self.model, "initialize"):
            self.model.initialize(args)

    def _step(self, name: str, function: Callable[[], T]) -> T:
        """Run a step of loading. Exceptions of the model become a LoadError with the server's message."""

        def run() -> T | LoadError:
            try:
                return function()
            except LoadError as exc:
                return exc
            except BaseException as exc:
                failure = LoadError(describe(exc, self._root))
                failure.__cause__ = exc
                return failure

        outcome = self._call(name, run)
        if isinstance(outcome, LoadError):
            raise outcome
        return outcome

    # Executing.

    def _accept(self, request: Request, check: Callable[[], InferRequest]) -> Exchange:
        if self._is_closed:
            raise RuntimeError(f"model '{self.name}' is closed")
        exchange = Exchange(request, self._explain, self.timeout_s)
        try:
            checked = check()
            self._controls.check(checked.id, checked.sequence_id)
            checked.inputs += initial_states(self.spec, {each.name for each in checked.inputs})
            checked.inputs += self._controls.tensors(checked.sequence_id, checked.sequence_start, checked.sequence_end)
        except InferenceError as exc:
            exchange.refuse(exc)
        else:
            exchange.rows = checked.batch_size
            tensors = [tensor_ref(each.name, each.datatype, each.shape, each.data) for each in checked.inputs]
            exchange.encoded = WireRequest(checked.id, *request_options(checked), tensors, checked.trace)
        return exchange

    def _post(self, exchanges: list[Exchange]) -> list[Exchange]:
        batch = [exchange for exchange in exchanges if not exchange.is_finished]
        rows = sum(exchange.rows for exchange in batch)
        if 0 < self.spec.max_batch_size < rows:
            raise ValueError(
                f"these requests have {rows} rows, and the server gives model '{self.name}' at most "
                f"{self.spec.max_batch_size} at a time, its max_batch_size"
            )
        # Where other requests of the batch go on, execute may return much later than one of them ends.
        for exchange in batch:
            exchange.waits_for_execute = len(batch) == 1 or not self.spec.decoupled
        if batch:
            self._server.post(batch)
        return exchanges

    def _execute(self, message: Infer) -> None:
        with self._modules.active():
            try:
                self._batches.execute(message, self._runner.coroutines)
            except BaseException as exc:  # a fault of ours, which must not leave requests waiting
                self._server.handle(Failed(message.batch, f"the request cannot be executed: {exc!r}", [], 0, 0))

    # Calls of the model's functions.

    def _call(self, name: str, function: Callable[[], T]) -> T:
        """Run a function of the model in its thread. Raises TimeoutError if it does not return."""

        def run() -> T:
            with self._modules.active():
                return function()

        try:
            return self._runner.call(run, self.timeout_s)
        except StillRunning:
            raise self._stuck(f"did not finish {name}", self._where()) from None

    def _drain(self) -> None:
        """Wait until the model has answered all cancelled requests."""
        for exchange in self._server.exchanges():
            exchange.drop()
        for exchange in self._server.exchanges():
            if not exchange.wait_finished(_AFTER_TIMEOUT_S if exchange.has_timed_out else self.timeout_s):
                raise self._stuck("did not end a request that was cancelled", f": {self._explain(exchange)}")

    def _stuck(self, what: str, why: str) -> TimeoutError:
        self._is_stuck = True
        return TimeoutError(f"model '{self.name}' {what} within {self.timeout_s:g} s{why}")

    def _explain(self, exchange: Exchange) -> str:
        """A description of what the model has not finished of a request."""
        if exchange.is_executed:
            return f"model '{self.name}' has left it to a response sender, which has not sent the final response"
        return f"model '{self.name}' has not returned from execute{self._where()}"

    def _where(self) -> str:
        where = self._runner.where(self._root)
        return f"; it is at {where}" if where else ""

    def _end(self) -> None:
        """Release everything. If the model's thread does not end, it is abandoned, and TimeoutError is raised."""
        has_ended = self._runner.stop(0 if self._is_stuck else self.timeout_s)
        self._modules.retire()
        server = getattr(self, "_server", None)
        if server is not None:
            process.end(server)
            if has_ended:
                server.close()
        if not has_ended and not self._is_stuck:
            raise self._stuck("did not end what it has running in its event loop", "")
