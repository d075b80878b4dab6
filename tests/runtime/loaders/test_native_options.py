# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a native backend besides its library."""

import json

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.loaders.native_options import command_line, preloads, stub_location
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.settings import ServerSettings


def spec_of(libraries):
    config = f"""name: "m" backend: "b"
        parameters {{ key: "PRELOAD_LIBRARIES" value {{ string_value: "{libraries}" }} }}"""
    return model_spec(parse_model_config(config, "config.pbtxt"))


def test_command_line():
    """The options for every backend, and the backend's own; all of them are texts."""
    settings = ServerSettings(("/models",), backend_config={"": {"a": "1"}, "b": {"a": "2", "c": "3"}, "d": {"e": "4"}})
    told = json.loads(command_line(settings, "/backends", "b"))["cmdline"]
    assert told["backend-directory"] == "/backends"
    assert told["auto-complete-config"] == "true"
    assert (told["a"], told["c"], "e" in told) == ("2", "3", False)
    assert json.loads(command_line(settings, "/backends", "d"))["cmdline"]["a"] == "1"


def test_preloads(tmp_path):
    """Libraries that are in the model's folder are paths; others are names that the loader looks for, or paths."""
    (tmp_path / "own.so").touch()
    found = preloads(spec_of("own.so:libm.so.6 /there/x.so;; y.so"), str(tmp_path))
    assert found == [str(tmp_path / "own.so"), "libm.so.6", "/there/x.so", "y.so"]
    assert preloads(spec_of(""), str(tmp_path)) == []


def test_location_of_a_stub(tmp_path):
    """A stub that runs a library gets all settings that it needs, as texts; any other backend gets its options."""
    settings = ServerSettings(
        ("/models",), log_verbose=2, host_policies={"near": {"numa-node": "1"}}, cuda_memory_pool_bytes={1: 5}
    )
    of = spec_of("a.so"), str(tmp_path), settings, "/backends"
    told = stub_location(Backend("b", "python_based", "/native/model.py", "/lib.so"), *of)
    assert (told["library"], json.loads(told["preload"]), told["log_verbose"]) == ("/lib.so", ["a.so"], "2")
    assert json.loads(told["host_policies"]) == {"near": {"numa-node": "1"}}
    assert json.loads(told["memory_pools"]) == [256 << 20, [[1, 5]]]
    assert json.loads(told["command_line"])["cmdline"]["backend-directory"] == "/backends"
    shared = stub_location(Backend("b", "python_based", "/backends/b/model.py"), *of)
    assert shared == {"command_line": told["command_line"]}
    assert stub_location(Backend("python", "python", "/m/1/model.py"), *of) == {}
