# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of configurations that nothing reads are said, and none that something reads."""

import ast
import importlib
from pathlib import Path

import pytest

from pyruntime.runtime.config.backend_fields import ENSEMBLE, FRAMEWORKS
from pyruntime.runtime.config.backend_parameters import NAMED_MAX, PARAMETERS, unread_parameters
from pyruntime.runtime.config.parse import parse_model_config

ROOT = Path(__file__).resolve().parent.parent.parent.parent
# Read for backends in C++ only, or for an ensemble.
NOT_OF_STUBS = {"EXECUTION_MODE", "PRELOAD_LIBRARIES", "OPTIONAL_OUTPUTS"}


def model(*names):
    text = "".join(f"parameters {{ key: '{name}' value {{ string_value: 'x' }} }} " for name in names)
    return parse_model_config(f"name: 'm' {text}", "config.pbtxt")


def read_names(path):
    """The names of parameters that a module asks a configuration for, as far as they are constants."""
    module = importlib.import_module("pyruntime." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
    for node in ast.walk(ast.parse(path.read_text())):
        asked = []
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_lookup = called.endswith(("settings.parameters.get", "spec.parameters.get"))
            if is_lookup or called in ("settings.integer", "settings.boolean", "settings.refused"):
                asked = node.args[:1]
            elif node.args and ast.unparse(node.args[0]) == "settings" and called.startswith("_"):
                asked = node.args[1:]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "config.parameters":
            asked = [node.left]
        for each in asked:
            name = getattr(module, each.id, None) if isinstance(each, ast.Name) else getattr(each, "value", None)
            if isinstance(name, str):
                yield name


@pytest.mark.parametrize("backend", sorted(FRAMEWORKS))
def test_every_parameter_that_a_backend_reads_is_known(backend):
    modules = sorted((ROOT / "backends" / backend).glob("*.py"))
    read = {name for path in modules for name in read_names(path)}
    assert read <= PARAMETERS[backend]
    # The table has no names that nothing reads, either.
    sources = "".join(path.read_text() for path in (ROOT / "backends" / backend).glob("*.py"))
    of_server = PARAMETERS["vllm"] - {"REPORT_CUSTOM_METRICS"}
    assert [name for name in PARAMETERS[backend] - of_server if f'"{name}"' not in sources] == []


def test_every_parameter_that_the_server_reads_is_known():
    folders = ("config", "gpus", "loaders", "repository")
    paths = [path for folder in folders for path in (ROOT / "runtime" / folder).glob("[a-z]*.py")]
    read = {name for path in paths for name in read_names(path)}
    assert {"EXECUTION_ENV_PATH", "INSTANCE_MODE", "CACHE_STREAMS", *NOT_OF_STUBS} <= read
    for backend in FRAMEWORKS:
        assert read - NOT_OF_STUBS <= PARAMETERS[backend]


@pytest.mark.parametrize("backend", sorted(FRAMEWORKS | {ENSEMBLE}))
def test_what_is_read_is_not_mentioned(backend):
    assert unread_parameters(model(*sorted(PARAMETERS[backend])), backend) == []
    assert unread_parameters(model(), backend) == []


@pytest.mark.parametrize("backend", ["python", "native", "custom", "mine"])
def test_code_of_a_user_may_read_any_parameter(backend):
    assert unread_parameters(model("anything"), backend) == []


def test_a_sentence_names_all_parameters_and_what_may_be_meant():
    assert unread_parameters(model("intra_op_thread_cont", "ENABLE_MEM_ARENA", "colour"), "onnxruntime") == [
        "model 'm' has parameters that nothing reads, as models of the backend 'onnxruntime' have no such: "
        "'ENABLE_MEM_ARENA' (did you mean 'enable_mem_arena' or 'enable_mem_pattern'?), 'colour', "
        "'intra_op_thread_cont' (did you mean 'intra_op_thread_count' or 'inter_op_thread_count'?)"
    ]


def test_entries_of_a_session_of_onnx_runtime_are_parameters():
    config = model("session.use_env_allocators", "memory.enable_memory_arena_shrinkage")
    assert unread_parameters(config, "onnxruntime") == []
    assert len(unread_parameters(config, "pytorch")) == 1


def test_of_many_parameters_the_number_is_said():
    (sentence,) = unread_parameters(model(*(f"p{number:03}" for number in range(NAMED_MAX + 5))), "jax")
    assert sentence.endswith(f"'p{NAMED_MAX - 1:03}', and 5 more")
