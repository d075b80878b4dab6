# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about tracing and logging, over stand-ins that note changes."""

import pytest

from pyruntime.runtime.frontends.grpc.methods import METHODS
from pyruntime.runtime.frontends.grpc.schema import class_of
from pyruntime.utils.errors import Code, InferenceError

TRACE, LOG = (
    class_of(METHODS[f"/inference.GRPCInferenceService/{name}"].request.DESCRIPTOR.nested_types_by_name["SettingValue"])
    for name in ("TraceSetting", "LogSettings")
)


class Tracer:
    """Its settings are its updates, but for those that are cleared."""

    def __init__(self):
        self.updates = []
        self.failure = None

    def settings(self, model=""):
        return {"trace_file": "t.json", "trace_level": ["TIMESTAMPS", "TENSORS"], "of": model}

    def update(self, model, values):
        if self.failure is not None:
            raise self.failure
        self.updates.append((model, values))


class LogSettings:
    def __init__(self):
        self.updates = []
        self.failure = None

    def current(self):
        return {"log_file": "", "log_info": True, "log_error": False, "log_verbose_level": 2, "log_format": "default"}

    def update(self, values):
        if self.failure is not None:
            raise self.failure
        self.updates.append(values)


class TestTrace:
    @pytest.fixture
    def tracer(self, call):
        call.state.tracer = Tracer()
        return call.state.tracer

    @pytest.mark.parametrize("model", ["", "m"])
    def test_reading(self, call, tracer, model):
        """Reading changes no setting; each value is a list, with one item for a setting with a single value."""
        settings = call("TraceSetting", model_name=model).settings
        assert {name: list(setting.value) for name, setting in settings.items()} == {
            "trace_file": ["t.json"], "trace_level": ["TIMESTAMPS", "TENSORS"], "of": [model],
        }  # fmt: skip
        assert tracer.updates == []

    def test_changing(self, call, tracer):
        """Values are lists, and no value clears."""
        settings = {
            "trace_rate": TRACE(value=["5"]),
            "trace_level": TRACE(value=["TIMESTAMPS", "TENSORS"]),
            "trace_count": TRACE(),
        }
        assert call("TraceSetting", model_name="m", settings=settings).settings["of"].value == ["m"]
        expected = {"trace_rate": ["5"], "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": None}
        assert tracer.updates == [("m", expected)]

    def test_what_is_refused(self, call, tracer):
        """The error is that of the tracer."""
        tracer.failure = InferenceError("no", Code.UNSUPPORTED)
        assert call.error("TraceSetting", settings={"trace_file": TRACE(value=["x"])}) == (Code.UNSUPPORTED, "no")


class TestLog:
    @pytest.fixture
    def settings(self, call):
        call.state.log_settings = LogSettings()
        return call.state.log_settings

    def test_reading(self, call, settings):
        """Each value is of its type, and nothing is changed."""
        found = call("LogSettings").settings
        assert {name: (each.WhichOneof("parameter_choice"), value_of(each)) for name, each in found.items()} == {
            "log_file": ("string_param", ""),
            "log_info": ("bool_param", True),
            "log_error": ("bool_param", False),
            "log_verbose_level": ("uint32_param", 2),
            "log_format": ("string_param", "default"),
        }
        assert settings.updates == []

    def test_changing(self, call, settings):
        """Values keep their types; an unset value is None."""
        values = {
            "log_info": LOG(bool_param=False),
            "log_verbose_level": LOG(uint32_param=1),
            "log_format": LOG(string_param="ISO8601"),
            "log_file": LOG(),
        }
        call("LogSettings", settings=values)
        expected = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601", "log_file": None}
        assert settings.updates == [expected]

    def test_what_is_refused(self, call, settings):
        """The error is that of the settings."""
        settings.failure = InferenceError("no", Code.INVALID_ARG)
        assert call.error("LogSettings", settings={"log_info": LOG(uint32_param=1)}) == (Code.INVALID_ARG, "no")


def value_of(setting):
    return getattr(setting, setting.WhichOneof("parameter_choice"))
