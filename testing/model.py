# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`load_model`, and the loaded model that it returns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Unpack

from pyruntime.testing.callees import Call, Function
from pyruntime.testing.configuration import read_model
from pyruntime.testing.control import ControlCall
from pyruntime.testing.exchange import Responses
from pyruntime.testing.instance import Instance
from pyruntime.testing.request import Request, RequestOptions
from pyruntime.testing.result import Result
from pyruntime.utils.errors import InferenceError

# The time limit for each step of a model: its import, initialize, finalize, and each response. It ends tests that hang.
TIMEOUT_S_DEFAULT = 60.0


def load_model(
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    config: Mapping[str, Any] | str | None = None,
    callees: Mapping[str, Function | LoadedModel | str | os.PathLike[str]] | None = None,
    backend_directory: str | os.PathLike[str] | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
) -> LoadedModel:
    """Load the model in the folder `path` into this process. Close it, best by a `with` statement.

    `version` defaults to the newest one that would be served. `config` replaces the model's configuration: a dict as
    the server shows it, or the text of a config.pbtxt. `callees` are the models that it may call, by name: a function
    that takes a `Call`, another loaded model, or the folder of one. `backend_directory` is searched for Python-based
    backends, like the server's option.

    Raises LoadError with the server's message, chained to the model's exception; and TimeoutError.
    """
    directories = [] if backend_directory is None else [os.fspath(backend_directory)]
    with ExitStack() as owned:
        found: dict[str, Function | Instance] = {}
        for name, callee in (callees or {}).items():
            if isinstance(callee, (str, os.PathLike)):
                callee = owned.enter_context(
                    load_model(callee, backend_directory=backend_directory, timeout_s=timeout_s)
                )
            found[name] = callee._instance if isinstance(callee, LoadedModel) else callee
        instance = Instance(read_model(Path(path), config), version, found, directories, timeout_s)
        return LoadedModel(instance, owned.pop_all())


class LoadedModel:
    """A loaded model. Its methods are thread-safe; it executes one batch at a time."""

    def __init__(self, instance: Instance, owned: ExitStack) -> None:
        """`owned` are the models that were loaded for it; they are closed with it."""
        self._instance = instance
        self._owned = owned

    def __repr__(self) -> str:
        return f"<LoadedModel {self.name} {self.version}>"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._instance.name

    @property
    def version(self) -> int:
        """The loaded version."""
        return self._instance.version

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, completed, as the server shows it."""
        config: dict[str, Any] = json.loads(self._instance.spec.json)
        return config

    @property
    def instance(self) -> Any:
        """The object of the model's own class TritonPythonModel."""
        return self._instance.model

    @property
    def module(self) -> ModuleType:
        """The module of this class, for `monkeypatch.setattr(model.module, ...)`, as it is not in sys.modules."""
        return self._instance.module

    @property
    def timeout_s(self) -> float:
        """The time limit for each step of the model, in seconds; may be changed at any time."""
        return self._instance.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._instance.timeout_s = timeout_s

    # Requests.

    def infer(self, inputs: Mapping[str, Any] | Request, **options: Unpack[RequestOptions]) -> Result:
        """Execute one request: inputs by name, or a Request; `options` are those of Request.

        Raises InferenceError if the response is an error or the server would refuse the request; TimeoutError if none
        arrives; and ValueError if the model is decoupled.
        """
        (result,) = self.execute([_request(inputs, options)])
        if result.error is not None:
            raise result.error
        return result

    def execute(self, requests: Sequence[Mapping[str, Any] | Request]) -> list[Result]:
        """Execute requests in one batch. An error is in its Result, so that the others are available.

        Raises TimeoutError if a response does not arrive; ValueError if the model is decoupled, or if there are more
        rows than the server would put into one batch.
        """
        if self._instance.spec.decoupled:
            raise ValueError(f"model '{self.name}' is decoupled: ask for the responses with stream or start")
        return [_only(list(responses)) for responses in self.start(requests)]

    def stream(self, inputs: Mapping[str, Any] | Request, **options: Unpack[RequestOptions]) -> Responses:
        """As `infer`, for any number of responses: they are taken one by one, as the model sends them."""
        return self.start([_request(inputs, options)])[0]

    def start(self, requests: Sequence[Mapping[str, Any] | Request]) -> list[Responses]:
        """Have the model execute requests in one batch, and return at once: what comes of each can be waited for.

        Raises ValueError if there are more rows than the server would ever put into one batch.
        """
        return [Responses(exchange) for exchange in self._instance.start([_request(each, {}) for each in requests])]

    # Effects of the model.

    @property
    def calls(self) -> list[Call]:
        """The calls that the model has made to other models, in order."""
        return self._instance.callees.calls

    @property
    def control_calls(self) -> list[ControlCall]:
        """The model's calls of `load_model`, `unload_model` and `is_model_ready`, in order."""
        return self._instance.control.calls

    def metrics(self) -> dict[str, float]:
        """The samples of the model's metrics, as on the metrics page: `{'hits{kind="a"}': 2.0}`.

        A metric is there as long as the model keeps its object.
        """
        return self._instance.control.metrics()

    def is_ready(self) -> bool:
        """The model's `is_ready()`; True if it has none. Raises TypeError if that is neither True nor False."""
        return self._instance.is_ready()

    # The end.

    def close(self) -> None:
        """Cancel all unanswered requests, wait for their end, and finalize the model. Idempotent.

        Raises TimeoutError if the model does not end, and any exception of `finalize`.
        """
        with self._owned:
            self._instance.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if exc is None:
                raise
            exc.add_note(f"besides, model '{self.name}' could not be closed: {failure!r}")


def _request(inputs: Mapping[str, Any] | Request, options: RequestOptions) -> Request:
    if not isinstance(inputs, Request):
        return Request(inputs, **options)
    if options:
        raise TypeError(f"a Request says itself what it has: {', '.join(options)}")
    return inputs


def _only(results: list[Result]) -> Result:
    if not results:
        return Result(error=InferenceError("the model ended the request without a response"))
    return results[0]
