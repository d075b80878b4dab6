# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType

import pytest

from pyruntime.runtime.cli import main, tritonserver
from pyruntime.runtime.cli.serve import run_serve
from pyruntime.runtime.frontends.listeners import Listeners
from pyruntime.runtime.observe.logging import ESCAPE_VARIABLE, LOGGER_NAMES


@pytest.fixture
def served(monkeypatch):
    """The settings that the server was started with; the server itself returns 7 at once, and starts no process."""
    settings = []
    monkeypatch.delenv(ESCAPE_VARIABLE, raising=False)
    server = ModuleType("pyruntime.runtime.app.server")

    def serve(given, frontends_of):
        assert frontends_of is Listeners
        settings.append(given)
        return 7

    server.serve = serve
    monkeypatch.setitem(sys.modules, "pyruntime.runtime.app.server", server)
    launch = ModuleType("pyruntime.runtime.instances.stub.launch")
    launch.start_launcher = lambda limit: None
    monkeypatch.setitem(sys.modules, "pyruntime.runtime.instances.stub.launch", launch)
    yield settings
    for name in LOGGER_NAMES:
        logger = logging.getLogger(name)
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def test_server_gets_the_settings_and_gives_the_status(served):
    """The exit status is the server's."""
    assert run_serve(["--model-repository=models", "--http-port=80"]) == 7
    assert [(one.model_repositories, one.http_port) for one in served] == [(("models",), 80)]


@pytest.mark.parametrize("alias", ["serve", "tritonserver"])
def test_both_names_of_the_command(served, alias):
    """`pyruntime tritonserver` is `pyruntime serve`."""
    assert main([alias, "--model-repository=models"]) == 7
    assert [one.model_repositories for one in served] == [("models",)]


def test_command_of_tritons_name(served, monkeypatch, capsys):
    """`tritonserver` takes the same options, has the same exit status, and is what its own help calls it."""
    monkeypatch.setattr(sys, "argv", ["tritonserver", "--model-repository=models", "--http-port", "80"])
    assert tritonserver() == 7
    assert [(one.model_repositories, one.http_port) for one in served] == [(("models",), 80)]
    monkeypatch.setattr(sys, "argv", ["tritonserver", "--foo"])
    assert tritonserver() == 1
    assert capsys.readouterr().err == "Error: unknown option '--foo'\n"
    monkeypatch.setattr(sys, "argv", ["tritonserver", "--help"])
    assert tritonserver() == 0
    assert capsys.readouterr().out.startswith("Usage: tritonserver --model-repository <folder>")


def test_bad_option_is_one_sentence_and_status_1(served, capsys):
    """The server does not start, and standard error has one line."""
    assert run_serve(["--model-repository=models", "--http-max-input-size=0"]) == 1
    assert capsys.readouterr().err == "Error: --http-max-input-size must be greater than 0.\n"
    assert served == []


def test_command_line_wins_over_the_file(served, tmp_path):
    """A value of both is the command line's, a value of the file alone the file's."""
    path = tmp_path / "server.yaml"
    path.write_text("model-repository: [a]\nhttp-port: 80\nid: file\nbackend-config: {python: {thread-pool-size: 1}}\n")
    run_serve(["--config", str(path), "--id=line", "--backend-config=python,stub-timeout-seconds=5"])
    (settings,) = served
    assert (settings.model_repositories, settings.http_port, settings.server_id) == (("a",), 80, "line")
    assert (settings.python_backend.thread_pool_size, settings.python_backend.stub_timeout_s) == (1, 5)


def test_warning_of_file_and_line_is_written_once(served, tmp_path, capsys):
    """An option without effect is one line of the log, wherever it was given."""
    path = tmp_path / "server.yaml"
    path.write_text("model-repository: a\nhttp-thread-count: 2\n")
    run_serve(["--config", str(path), "--http-thread-count=4"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("W")
    assert line.endswith(
        '] "--http-thread-count is accepted and has no effect: one event loop serves every connection"'
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_debug_needs_a_terminal(served, monkeypatch, capsys, terminal):
    """Where nobody can type that is a line of the log; the model is debugged all the same, and the status the same."""
    monkeypatch.setattr("pyruntime.runtime.cli.serve.has_terminal", lambda: terminal)
    assert run_serve(["--model-repository=models", "--debug=add_sub"]) == 7
    assert [one.debug_model for one in served] == ["add_sub"]
    assert ("standard input is no terminal" in capsys.readouterr().err) is not terminal


def test_log_file_that_cannot_be_opened(served, tmp_path, capsys):
    """A server that cannot log as told does not start."""
    assert run_serve(["--model-repository=a", f"--log-file={tmp_path}"]) == 1
    assert capsys.readouterr().err.endswith("cannot be opened: Is a directory\n")
    assert served == []


@pytest.mark.processes
def test_serve_imports_nothing_slow():
    """Up to the server itself, starting imports nothing that only help, files, tensors or connections need."""
    code = """
import sys, types
import pyruntime.runtime.cli
light = set(sys.modules)
server = types.ModuleType("pyruntime.runtime.app.server")
server.serve = lambda settings, frontends_of: 0
sys.modules["pyruntime.runtime.app.server"] = server
listeners = types.ModuleType("pyruntime.runtime.frontends.listeners")
listeners.Listeners = None
sys.modules["pyruntime.runtime.frontends.listeners"] = listeners
launch = types.ModuleType("pyruntime.runtime.instances.stub.launch")
launch.start_launcher = lambda limit: None
sys.modules["pyruntime.runtime.instances.stub.launch"] = launch
assert pyruntime.runtime.cli.main(["serve", "--model-repository=a"]) == 0
print({"typer", "click", "rich", "numpy", "yaml", "asyncio"} & set(sys.modules))
print({"logging", "dataclasses", "pyruntime.runtime.settings"} & light)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()", "set()"]
