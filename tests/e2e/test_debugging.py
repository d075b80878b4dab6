# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model under a debugger at the server's terminal, what stuck stubs say of themselves, and what dead ones leave."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from pyruntime.runtime.observe import stubs

from .harness.server import to_input
from .harness.waiting import LIMIT_S

INPUT = {"IN": np.array([21])}
STOPS = """
class TritonPythonModel:
    def initialize(self, args):
        print("printed")
        pb_utils.Logger.log_info("logged")

    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            factor = 2
            if request.request_id() != "work":
                breakpoint()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", factor * array)]))
        return responses
"""
WORKS = STOPS.replace('request.request_id() != "work"', "False")
# A request's ID, or its parameter "initialize", selects the action, which is logged first.
ACTS = """
import ctypes, itertools

def act(how):
    print("acts:", how)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "thread":
        crashing = threading.Thread(target=act, args=("segfault",))
        crashing.start()
        crashing.join()
    elif how == "wait":
        signal.pause()
    elif how == "spin":
        while True:
            pass
    elif how == "c":
        sum(itertools.repeat(0))

class TritonPythonModel:
    def initialize(self, args):
        act(json.loads(args["model_config"])["parameters"].get("initialize", {}).get("string_value"))

    def execute(self, requests):
        for request in requests:
            act(request.request_id())
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""


@pytest.fixture
def debug(terminal, serve):
    """`debug(*options)`: a server at the terminal, where the model "stops" is debugged. It ends before the terminal."""
    return lambda *options, **how: serve("--debug=stops", *options, wrapper=terminal.wrapper, **how)


@pytest.fixture
def at_prompt(terminal, wait_until):
    """`at_prompt(count)`: wait for the debugger's prompt, for the `count`th time."""
    return lambda count=1: wait_until(lambda: terminal.seen().count("(Pdb) ") >= count)


def infer(server, model="stops", request_id=""):
    return server.infer(model, INPUT, request_id=request_id).as_numpy("OUT").tolist()


# At the terminal.


def test_breakpoint(model, debug, terminal, at_prompt):
    """The user at the terminal examines a request, changes it and continues, and the response arrives."""
    model("stops", STOPS, more="instance_group { count: 3 kind: KIND_CPU }")
    model("other", WORKS)
    server = debug()
    assert len(server.stubs("stops_0_0")) == 1
    assert not server.stubs("stops_0_1")
    with ThreadPoolExecutor() as clients:
        request = clients.submit(infer, server)
        at_prompt()
        assert infer(server, "other") == [42]
        assert "execute()" in terminal.seen()
        terminal.type("p array.tolist(), 'looked at'\n")
        at_prompt(2)
        assert "([21], 'looked at')" in terminal.seen()
        terminal.type("factor = 10\n")
        at_prompt(3)
        assert not request.done()
        terminal.type("continue\n")
        assert request.result() == [210]
    assert infer(server, request_id="work") == [42]


def test_log_goes_on(model, debug, terminal, at_prompt, wait_until):
    """During debugging, the server's log lines are on the terminal, and complete."""
    model("stops", STOPS)
    model("other", "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('one')\n")
    server = debug()
    wait_until(lambda: re.search(r"^I\d{4} .*successfully loaded 'stops'$", terminal.seen(), re.M))
    with ThreadPoolExecutor() as clients:
        request = clients.submit(infer, server)
        at_prompt()
        server.refusal("other", INPUT)
        wait_until(lambda: re.search(r"^E\d{4} .*other_0: ValueError: one$", terminal.seen(), re.M))
        terminal.type("continue\n")
        assert request.result() == [42]


def test_prints_appear(model, debug, terminal, wait_until):
    """The prints of the model are on the terminal as they are, and its log lines are in the log."""
    model("stops", STOPS)
    debug()
    wait_until(lambda: re.search(r"^printed$", terminal.seen(), re.M))
    wait_until(lambda: re.search(r"^I\d{4} .* stops_0: logged$", terminal.seen(), re.M))


def test_quit(model, debug, terminal, at_prompt):
    """`quit` in the debugger fails that one request."""
    model("stops", STOPS)
    server = debug()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(server.refusal, "stops", INPUT)
        at_prompt()
        terminal.type("quit\n")
        status, _ = request.result()
        assert status == 500
    assert infer(server, request_id="work") == [42]


def test_stub_dies(model, debug, terminal, at_prompt):
    """The model's next process is at the terminal as well."""
    model("stops", STOPS)
    server = debug()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(server.refusal, "stops", INPUT)
        at_prompt()
        terminal.type("import os; os._exit(3)\n")
        assert request.result()[0] == 500
        request = clients.submit(infer, server)
        at_prompt(2)
        terminal.type("continue\n")
        assert request.result() == [42]


def test_ctrl_c_at_the_prompt(model, debug, terminal, at_prompt, wait_until):
    """Ctrl-C stops the server once the debugger continues the request, for every --exit-timeout-secs."""
    model("stops", STOPS)
    server = debug("--exit-timeout-secs=0")
    with ThreadPoolExecutor() as clients:
        request = clients.submit(infer, server)
        at_prompt()
        server.family()
        terminal.type("\x03")
        wait_until(lambda: "Waiting for 1 in-flight requests" in terminal.seen())
        terminal.type("p 'still here'\n")
        wait_until(lambda: terminal.seen().count("still here") >= 2)
        terminal.type("continue\n")
        assert request.result() == [42]
    assert server.wait_exit() == 0
    assert "KeyboardInterrupt" not in terminal.seen()
    assert terminal.echoes()


def test_ctrl_c_twice(model, debug, terminal, at_prompt, wait_until):
    """A second Ctrl-C does not wait for the debugger, and the terminal is left as it was found."""
    model("stops", STOPS)
    server = debug()
    assert terminal.echoes()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(server.refusal, "stops", INPUT)
        at_prompt()
        wait_until(lambda: not terminal.echoes())
        server.family()
        terminal.type("\x03")
        wait_until(lambda: "Waiting for 1 in-flight requests" in terminal.seen())
        terminal.type("\x03")
        assert request.result()[0] == 500
    assert server.wait_exit() == 0
    assert terminal.echoes()


def test_ctrl_c_after_the_debugger_was_left(model, debug, terminal, at_prompt, wait_until):
    """Ctrl-C stops the server at once; pdb, which was used before, does not take it for itself."""
    model("stops", STOPS)
    server = debug()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(infer, server)
        at_prompt()
        terminal.type("continue\n")
        assert request.result() == [42]
    server.family()
    terminal.type("\x03")
    assert server.wait_exit() == 0
    wait_until(lambda: "All models are stopped, unloaded." in terminal.seen())
    assert "Program interrupted" not in terminal.seen()


def test_breakpoint_while_loading(model, debug, terminal, at_prompt):
    """The import of a model can be debugged; Ctrl-C there ends the server."""
    model("stops", "breakpoint()\n" + STOPS)
    server = debug(ready=False)
    at_prompt()
    terminal.type("continue\n")
    server.wait_ready()
    assert infer(server, request_id="work") == [42]


def test_ctrl_c_while_loading(model, debug, terminal, at_prompt):
    """Ctrl-C while the debugger is at an import ends the server at once."""
    model("stops", "breakpoint()\n" + STOPS)
    server = debug(ready=False)
    at_prompt()
    server.family()
    terminal.type("\x03")
    assert server.wait_exit() == 0
    assert terminal.echoes()


def test_newest_version_only(model, debug):
    """Of several versions only one can have the terminal."""
    folder = model("stops", STOPS, more="version_policy { all {} }")
    (folder / "2").mkdir()
    (folder / "2" / "model.py").write_text((folder / "1" / "model.py").read_text())
    server = debug()
    assert len(server.stubs("stops_0")) == 1
    assert infer(server, request_id="work") == [42]
    status = server.request("GET", "/v2/models/stops/versions/1/ready").status
    assert status != 200


def test_unknown_model(model, serve):
    """To debug a model that there is not is an error, and nothing is started."""
    model("stops", STOPS)
    server = serve("--debug=stop", ready=False)
    assert server.wait_exit() == 1
    assert "--debug: there is no model 'stop' in the repositories; there are: stops" in server.log


def test_without_terminal(model, serve):
    """Without a terminal, the server logs this and serves."""
    model("stops", STOPS)
    server = serve("--debug=stops")
    assert "--debug: standard input is no terminal" in server.log
    assert infer(server, request_id="work") == [42]


def test_breakpoint_without_debug(model, deploy):
    """breakpoint() in a model that is not debugged fails the request, and says how it works."""
    model("stops", STOPS)
    server = deploy()
    status, message = server.refusal("stops", INPUT)
    assert status == 500
    assert "breakpoint() needs a terminal: start the server with --debug and the name of this model" in message
    assert infer(server, request_id="work") == [42]


# Stacks of stubs.


def stack(*words, wrapper=()):
    """`pyruntime stack ...`: its status, and its output."""
    command = [*wrapper, sys.executable, "-m", "pyruntime", "stack", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


# A name that no model of another server on this machine has.
ACTOR = f"actor_{os.getpid()}"


def heading(server, instance):
    """The heading above the stacks of an instance."""
    return f"{instance} of {ACTOR} version 1, process {server.stub(instance).pid}\n"


def be_stuck(server, how):
    """A request that is never answered. Its client waits for longer than the commands take that look at it."""
    with closing(server.client(4 * LIMIT_S)) as client:
        client.infer(ACTOR, [to_input(name, array) for name, array in INPUT.items()], request_id=how)


@pytest.mark.parametrize("how", ["wait", "spin", "c"])
def test_stack_of_a_stub_that_is_stuck(model, deploy, wait_until, how):
    """The stacks of a busy stub show where in the model it is, for every kind of work; idle stubs are shown, too."""
    model(ACTOR, ACTS, more="instance_group { count: 2 kind: KIND_CPU }")
    server = deploy()
    with ThreadPoolExecutor() as clients:
        request = clients.submit(be_stuck, server, how)
        stuck = wait_until(lambda: re.search(rf"({ACTOR}_0_[01]): acts: {how}", server.log)).group(1)
        status, output = stack(ACTOR)
        assert status == 0
        before, _, after = output.partition(heading(server, stuck))
        assert len(server.stubs(f"{ACTOR}_0_0") + server.stubs(f"{ACTOR}_0_1")) == 2
        shown = after.partition(" of ")[0]
        assert re.search(r"line \d+ in act\n.*line \d+ in execute\n", shown)
        assert "in execute" not in before + after[len(shown) :]
        assert stack(ACTOR, "--instance", stuck)[1].count(" of ") == 1
        assert not request.done()
        os.kill(server.stub(stuck).pid, signal.SIGKILL)
        assert request.exception() is not None


@pytest.mark.parametrize("where", ["initialize", "<module>"])
def test_stack_while_loading(model, serve, wait_until, where):
    """A stub that is stuck in initialize, or while its model is imported, can be looked at too."""
    if where == "initialize":
        model(ACTOR, ACTS, more='parameters { key: "initialize" value { string_value: "wait" } }')
    else:
        model(ACTOR, ACTS + "\nact('wait')\n")
    server = serve(ready=False)
    wait_until(lambda: f"{ACTOR}_0: acts: wait" in server.log)
    status, output = stack(ACTOR)
    assert status == 0
    assert output.startswith(heading(server, f"{ACTOR}_0"))
    assert re.search(rf"line \d+ in act\n.*line \d+ in {where}\n", output)


def test_stacks_of_several_servers(model, serve):
    """Stubs are found whichever server they are of."""
    model(ACTOR, ACTS)
    servers = [serve(), serve()]
    status, output = stack(ACTOR)
    assert status == 0
    assert all(heading(server, f"{ACTOR}_0") in output for server in servers)


def test_stack_of_no_model(model, deploy):
    """A model that is not served has no stacks, and those that are served are named."""
    model(ACTOR, ACTS)
    deploy()
    status, output = stack(f"{ACTOR}_")
    assert status == 1
    assert output.startswith(f"Error: no stub of a model '{ACTOR}_' runs on this machine as user {os.getuid()}; ")
    assert ACTOR in output.partition("there are: ")[2].strip().split(", ")


def test_stack_disturbs_nobody(model, deploy, with_limits):
    """Requests are answered as usual while stacks are requested."""
    model(ACTOR, ACTS)
    server = deploy()
    stub = server.stub(f"{ACTOR}_0")
    with ThreadPoolExecutor() as clients:
        patient = with_limits(stubs, BELL_S_MAX=LIMIT_S)  # each waits for all before it
        asking = [clients.submit(stack, ACTOR, wrapper=patient) for _ in range(3)]
        while not all(each.done() for each in asking):
            assert infer(server, ACTOR) == [21]
        assert [each.result()[0] for each in asking] == [0, 0, 0]
    assert server.stub(f"{ACTOR}_0") == stub


# Stacks of stubs that have crashed.


@pytest.mark.parametrize(
    ("how", "error", "frames"),
    [
        ("segfault", "Segmentation fault", ["string_at", "act", "execute"]),
        ("abort", "Aborted", ["act", "execute"]),
        ("thread", "Segmentation fault", ["string_at", "act", "run", "act", "execute"]),
    ],
)
def test_stack_of_a_crash(model, deploy, wait_until, how, error, frames):
    """Where in the model each thread was when its process crashed is in the log."""
    model("actor", ACTS)
    server = deploy()
    assert server.refusal("actor", INPUT, request_id=how)[0] == 500
    wait_until(lambda: "actor_0: restarts" in server.log)
    dump = server.log.partition(f"actor_0: Fatal Python error: {error}")[2]
    functions = re.findall(r"^E\d{4} .* actor_0:   File .*, line \d+ in (\w+)$", dump, re.M)
    seen = iter(functions)
    assert all(frame in seen for frame in frames), functions


@pytest.mark.parametrize(("how", "error"), [("segfault", "Segmentation fault"), ("abort", "Aborted")])
def test_stack_of_a_crash_while_loading(model, serve, how, error):
    """Where in initialize a process crashed is in the log, beside the model's failure to load."""
    model("actor", ACTS, more=f'parameters {{ key: "initialize" value {{ string_value: "{how}" }} }}')
    server = serve(ready=False)
    assert server.wait_exit() == 1
    assert f"actor_0: Fatal Python error: {error}" in server.log
    assert re.search(r"^E\d{4} .* actor_0:   File .*, line \d+ in initialize$", server.log, re.M)
    assert "failed to load 'actor' version 1: Internal: the stub process of actor_0 was killed by SIG" in server.log
