# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces the server's other functions for a model under test: model control and metrics.

It loads nothing. It records the calls, and changes whether the models that the test provides are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.repository.request import unknown
from pyruntime.stub.pb_utils import TritonModelException
from pyruntime.utils.errors import InferenceError


class ControlCall(NamedTuple):
    """One call of `load_model`, `unload_model` or `is_model_ready`, with its arguments."""

    method: str
    model_name: str
    config: str = ""
    files: Mapping[str, bytes] = {}
    unload_dependents: bool = False
    model_version: str = ""


class Control:
    """See the module. `has` says whether there is a model of a name, and of a version, "" for any."""

    def __init__(self, has: Callable[[str, str], bool]) -> None:
        self.calls: list[ControlCall] = []
        self._has = has
        self._loaded: set[str] = set()
        self._unloaded: set[str] = set()
        self._metrics = Metrics()
        # Reentrant, because metrics are dropped by destructors.
        self._lock = threading.RLock()

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model may be called now: the test provides it or it was loaded, and it was not unloaded later."""
        return name not in self._unloaded and (name in self._loaded or self._has(name, version))

    def metrics(self) -> dict[str, float]:
        """The samples of all the model's metrics, as on the metrics page: `{'hits{kind="a"}': 2.0}`."""
        with self._lock:
            lines = self._metrics.render().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    # The methods of Host.

    def ask(self, method: str, arguments: list[Any]) -> Any:
        """See Host."""
        with self._lock:
            try:
                return getattr(self, f"_{method}")(*arguments)
            except InferenceError as exc:
                raise TritonModelException(exc.message) from exc

    def tell(self, method: str, arguments: list[Any]) -> None:
        """See Host."""
        with self._lock:
            getattr(self._metrics, method)(self, *arguments)

    def measure(self, metric: int, operation: str, value: float) -> None:
        """See Host."""
        with self._lock:
            self._metrics.measure(self, metric, operation, value)

    # The methods of `ask`.

    def _load_model(self, name: str, config: str, files: dict[str, bytes]) -> None:
        self.calls.append(ControlCall("load_model", name, config, files))
        if not files and not self._has(name, ""):
            raise unknown(name)
        self._loaded.add(name)
        self._unloaded.discard(name)

    def _unload_model(self, name: str, unload_dependents: bool) -> None:
        self.calls.append(ControlCall("unload_model", name, unload_dependents=unload_dependents))
        self._loaded.discard(name)
        self._unloaded.add(name)

    def _is_model_ready(self, name: str, version: str) -> bool:
        self.calls.append(ControlCall("is_model_ready", name, model_version=version))
        return self.is_ready(name, version)

    def _metric_family(self, name: str, description: str, kind: str) -> int:
        return self._metrics.family(self, name, description, kind)

    def _metric(self, family: int, labels: dict[str, str], buckets: list[float] | None) -> int:
        return self._metrics.metric(self, family, labels, buckets)

    def _metric_value(self, metric: int) -> float:
        return self._metrics.value(self, metric)
