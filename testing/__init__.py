# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Unit tests for models: loads a model's folder into the test's process, by the same code that serves it.

    from pyruntime.testing import load_model

    def test_sum():
        with load_model("models/add_sub") as model:
            result = model.infer({"INPUT0": [1.0] * 16, "INPUT1": [2.0] * 16})
            assert result["OUTPUT0"].tolist() == [3.0] * 16

Configurations, requests and responses are validated as in the server, with the same error messages. The test provides
the other models that the model calls. Features that need several processes or time, such as several instances, batching
delays and restarts, are not simulated.

This module imports everything on first use, because pytest imports it in every run, for its plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyruntime.testing.callees import Call
    from pyruntime.testing.contradictions import ContradictionWarning
    from pyruntime.testing.control import ControlCall
    from pyruntime.testing.exchange import Responses
    from pyruntime.testing.model import LoadedModel, load_model
    from pyruntime.testing.request import Request
    from pyruntime.testing.result import Result
    from pyruntime.utils.errors import Code, InferenceError, LoadError

__all__ = [
    "Call",
    "Code",
    "ContradictionWarning",
    "ControlCall",
    "InferenceError",
    "LoadError",
    "LoadedModel",
    "Request",
    "Responses",
    "Result",
    "load_model",
]

_HOMES = {
    "Call": "pyruntime.testing.callees",
    "Code": "pyruntime.utils.errors",
    "ContradictionWarning": "pyruntime.testing.contradictions",
    "ControlCall": "pyruntime.testing.control",
    "InferenceError": "pyruntime.utils.errors",
    "LoadError": "pyruntime.utils.errors",
    "LoadedModel": "pyruntime.testing.model",
    "Request": "pyruntime.testing.request",
    "Responses": "pyruntime.testing.exchange",
    "Result": "pyruntime.testing.result",
    "load_model": "pyruntime.testing.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
