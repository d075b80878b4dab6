# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The Python backend of models that run a native backend in a process of their own: see their parameter EXECUTION_MODE.

Every instance is a stub that loads the backend's library, which otherwise the server loads. So a crash of the backend
ends one instance only, which is restarted; libraries that conflict are loaded in different processes; and libraries
that one model preloads affect no other model.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from pyruntime.backends.native import arguments
from pyruntime.backends.native.library import NativeModel
from pyruntime.backends.native.server import Server


class TritonPythonModel:
    """One instance of a native backend."""

    # The location of the model: see library.py. The stub sets it before it calls any method.
    location: ClassVar[dict[str, str]]
    # The server and the model of auto_complete_config, which `initialize` continues to use.
    _begun: ClassVar[tuple[Server, NativeModel] | None] = None

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Have the backend complete the configuration. Raises LoadError."""
        config = auto_complete_model_config.as_dict()
        server, model = cls._begin(config)
        try:
            completed = model.complete(config)
        except BaseException:
            model.finalize(None)
            server.end()
            raise
        cls._begun = server, model
        server.settle()
        if completed is not None:
            config.clear()
            config.update(completed)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Initialise the backend and the model, unless they are initialised, and the instance. Raises LoadError."""
        config = json.loads(args["model_config"])
        self._server, self._model = self._begun or self._begin(config)
        type(self)._begun = None
        self._instance: Any = None
        try:
            self._model.configure(config, args["model_config"])
            self._batches = self._server.serve(
                arguments.is_decoupled(config),
                {name: shared for name, _, _, shared in arguments.states(config)},
                lambda batches: self._model.instance(batches, config, args),
            )
            self._instance = self._batches.handle
            self._model.begin(self._instance)
            self._server.report_memory(partial(self._model.memory_usage, self._instance))
            self._server.settle()
        except BaseException:
            self.finalize()
            raise
        if self._model.is_asked:
            self.is_ready = self._is_ready

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse | None] | None:
        """Have the backend execute the requests."""
        return self._batches.execute(requests)

    def finalize(self) -> None:
        """Finalise the instance, the model and the backend."""
        for problem in self._model.finalize(self._instance):
            pb_utils.Logger.log_error(problem)
        self._server.end()

    def _is_ready(self) -> bool:
        problem = self._instance.is_ready()
        if problem is not None:
            pb_utils.Logger.log_warn(f"not ready: {problem}")
        return problem is None

    @classmethod
    def _begin(cls, config: dict[str, Any]) -> tuple[Server, NativeModel]:
        arguments.check(config)
        server = Server(config["name"])
        try:
            return server, NativeModel(server.native, cls.location, config)
        except BaseException:
            server.end()
            raise
