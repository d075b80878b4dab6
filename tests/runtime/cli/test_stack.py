# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime stack`, and its parts, with processes in the place of stubs; tests/e2e/test_debugging.py has it with a
server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyruntime.runtime.cli import main
from pyruntime.runtime.cli.stack import run_stack
from pyruntime.runtime.observe import stubs
from pyruntime.runtime.observe.stubs import ask_for_stacks, find_stubs

pytestmark = pytest.mark.processes

PRELUDE = """
import ctypes, itertools, os, signal, sys, threading
from pyruntime.stub import stacks

"""
# A name that no other process has.
MODEL = f"model_of_{os.getpid()}"
WAIT = 'print("ready"); sys.stdin.read()'
# Only a signal gets an answer from it: it holds the interpreter's lock when it prints, and never releases it.
KEEP_LOCK = (
    'said = map(ctypes.PyDLL(None).write, [1], [b"ready\\n"], [6]); sum(itertools.chain(said, itertools.repeat(0)))'
)


@pytest.fixture
def start():
    """`start(code, instance, model, version, before)`: a process with a name, that ran `code` until it was "ready"."""
    processes = []

    def start(code, instance="m_0", model=MODEL, version="1", before=""):
        install = f"{before}\nstacks.install({model!r}, {version!r}, {instance!r})\n"
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", PRELUDE + install + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Make the limits so long that a busy machine does not exceed them."""
    monkeypatch.setattr(stubs, "BELL_S_MAX", 60.0)
    monkeypatch.setattr(stubs, "SIGNAL_S_MAX", 60.0)


@pytest.fixture
def impatient(monkeypatch):
    """Limits that a test can wait for."""
    monkeypatch.setattr(stubs, "BELL_S_MAX", 0.1)
    monkeypatch.setattr(stubs, "SIGNAL_S_MAX", 0.1)


@pytest.fixture
def find():
    """`find(process)`: the stub that a process is."""
    with ExitStack() as resources:

        def find(process):
            (stub,) = [stub for stub in find_stubs(resources) if stub.pid == process.pid]
            return stub

        yield find


def test_stacks_of_every_instance(start, capsys):
    """All stubs of the model are shown, by version and name, and no other's."""
    started = [start(WAIT, "b"), start(WAIT, "a"), start(WAIT, "a", version="2"), start(WAIT, model=f"{MODEL}_2")]
    assert main(["stack", MODEL]) == 0
    output = capsys.readouterr().out
    headings = [line for line in output.splitlines() if " of " in line]
    assert headings == [
        f"a of {MODEL} version 1, process {started[1].pid}",
        f"b of {MODEL} version 1, process {started[0].pid}",
        f"a of {MODEL} version 2, process {started[2].pid}",
    ]
    assert output.count(" in <module>\n") == 3


def test_all_models(start, capsys):
    """Without a model, the stubs of all models are shown, by model."""
    started = [start(WAIT, "a", model=f"{MODEL}_2"), start(WAIT, "b")]
    main(["stack"])  # its status depends on the stubs of others
    headings = [line for line in capsys.readouterr().out.splitlines() if f" of {MODEL}" in line]
    assert headings == [
        f"b of {MODEL} version 1, process {started[1].pid}",
        f"a of {MODEL}_2 version 1, process {started[0].pid}",
    ]


def test_one_instance(start, capsys):
    """--instance chooses."""
    start(WAIT, "a")
    start(WAIT, "b")
    assert main(["stack", MODEL, "--instance", "b"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"b of {MODEL} ")
    assert output.count(" of ") == 1


def test_no_such_model(start, capsys):
    """Status 1 and one sentence, which names the existing models."""
    # Servers that run beside this test have models too, and only so many are named: this is among the first ones.
    start(WAIT, model=f"!{MODEL}")
    assert main(["stack", "nonsense"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"Error: no stub of a model 'nonsense' runs on this machine as user {os.geteuid()}; "
    )
    assert f"!{MODEL}" in captured.err


def test_no_stub_at_all(monkeypatch, capsys):
    """Status 1 and one sentence."""
    monkeypatch.setattr("pyruntime.runtime.cli.stack.find_stubs", lambda resources: [])
    assert run_stack("nonsense") == 1
    assert capsys.readouterr().err.endswith(", nor of any other\n")
    assert run_stack() == 1
    assert capsys.readouterr().err == f"Error: no stub of a model runs on this machine as user {os.geteuid()}\n"


def test_no_such_instance(start, capsys):
    """Status 1 and one sentence, which names the instances."""
    start(WAIT, "a")
    start(WAIT, "b")
    assert main(["stack", MODEL, "--instance", "c"]) == 1
    assert capsys.readouterr().err == f"Error: no stub of model '{MODEL}' is instance 'c'; there are: a, b\n"


def test_loop_in_python(start, capsys):
    """A thread that never rests is shown at once, without a signal."""
    start(
        """
def spin():
    print("ready")
    while True:
        pass
spin()
"""
    )
    assert run_stack(MODEL) == 0
    output = capsys.readouterr().out
    assert " in spin\n" in output
    assert "Current thread" not in output


def test_lock_kept_in_c(start, capsys, monkeypatch):
    """A stub that C code keeps the interpreter's lock of is shown by signal, and goes on."""
    monkeypatch.setattr(stubs, "BELL_S_MAX", 0.1)
    process = start(KEEP_LOCK)
    assert run_stack(MODEL) == 0
    output = capsys.readouterr().out
    assert "a call into C probably keeps the interpreter's lock" in output
    assert " in <module>\n" in output
    assert process.poll() is None


def test_dump_by_signal_is_complete(start, monkeypatch):
    """However much there is to tell, all of it has been told when the answer is taken for one."""
    monkeypatch.setattr(stubs, "BELL_S_MAX", 0.1)
    process = start(
        """
lock = threading.Lock()
def down(depth):
    if depth:
        down(depth - 1)
    with lock:
        pass
lock.acquire()
threads = [threading.Thread(target=down, args=(90,)) for _ in range(60)]
for thread in threads:
    thread.start()
"""
        + KEEP_LOCK
    )
    for _ in range(5):
        with ExitStack() as resources:
            (stub,) = [stub for stub in find_stubs(resources) if stub.pid == process.pid]
            ask_for_stacks([stub])
        assert (stub.by_signal, stub.problem) == (True, "")
        # The threads stand in the order of their age, the first one last.
        assert stub.stacks.count("hread 0x") == 62
        assert stub.stacks.endswith(" in <module>\n")


def test_files_that_come_and_go(start):
    """A stub that opens and closes files all the while is found each time."""
    process = start('print("ready")\nwhile True:\n    os.close(os.open("/dev/null", os.O_RDONLY))')
    for _ in range(50):
        with ExitStack() as resources:
            assert process.pid in [stub.pid for stub in find_stubs(resources)]


def test_stopped(start, capsys):
    """A stub that is stopped is not waited for."""
    process = start(WAIT)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert run_stack(MODEL) == 1
    assert "No stacks, or not all of them: the process is stopped.\n" in capsys.readouterr().out


def test_stopped_meanwhile(start, find, monkeypatch):
    """A stub that is stopped after it was asked is given up, and the others are heard."""
    monkeypatch.setattr(stubs, "SIGNAL_S_MAX", 0.1)
    process, other = start(KEEP_LOCK), start(WAIT)
    stub = find(process)
    assert not stub.proceed(-stubs.BELL_S_MAX)  # it has had its time for the bell
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    heard = find(other)
    ask_for_stacks([stub, heard])
    assert heard.problem == ""
    assert stub.problem == "did not answer within 60.1 s: it is stopped"


def test_signal_is_blocked(start, capsys, impatient):
    """A stub that holds the signal back is not waited for beyond the limit, and goes on."""
    process = start(KEEP_LOCK, before="signal.pthread_sigmask(signal.SIG_BLOCK, {stacks.STACK_SIGNAL})")
    assert run_stack(MODEL) == 1
    assert "the process did not answer within 0.2 s.\n" in capsys.readouterr().out
    assert process.poll() is None


def test_signal_has_no_handler(start, capsys, monkeypatch):
    """A stub that the signal would end does not get it."""
    monkeypatch.setattr(stubs, "BELL_S_MAX", 0.1)
    process = start("signal.signal(stacks.STACK_SIGNAL, signal.SIG_DFL)\n" + KEEP_LOCK)
    assert run_stack(MODEL) == 1
    assert "has no handler for signal" in capsys.readouterr().out
    assert process.poll() is None


def test_gone_meanwhile(start, find):
    """A stub that ends while it is asked is said to have."""
    before, between = start(WAIT), start(KEEP_LOCK)
    stubs = [find(before), find(between)]
    before.kill()
    before.wait()
    assert stubs[0].proceed(0.0)
    assert not stubs[1].proceed(0.0)
    between.kill()
    os.waitid(os.P_PID, between.pid, os.WEXITED | os.WNOWAIT)  # still a zombie
    assert stubs[1].proceed(0.0)
    assert [stub.problem for stub in stubs] == ["has ended", "has ended"]


def test_forked_children_are_no_stubs(start, find, capsys):
    """A process that a stub forked without Python has its file, but is no stub: the signal might end it."""
    process = start(
        """
if ctypes.PyDLL(None).fork() == 0:
    os.write(1, b"ready\\n")
    os.read(0, 1)
os.wait()
"""
    )
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    try:
        with ExitStack() as resources:
            assert child not in [stub.pid for stub in find_stubs(resources)]
        assert find(process).heading.pid == process.pid
        assert run_stack(MODEL) == 0
        assert capsys.readouterr().out.count(" of ") == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_who_asks_at_the_same_time_waits(start, find):
    """Of two who ask, each gets a whole answer."""
    process = start(WAIT)
    first, second = find(process), find(process)
    assert not first.proceed(0.0)
    assert not second.proceed(0.0)
    assert not second.proceed(0.0)
    ask_for_stacks([first])
    assert " in <module>\n" in first.stacks
    assert (first.problem, second.problem, second.stacks) == ("", "", "")


def test_who_asks_for_too_long(start, find, impatient):
    """An asker that is stopped itself does not block other askers for ever."""
    process = start(WAIT)
    first, second = find(process), find(process)
    assert not first.proceed(0.0)
    ask_for_stacks([second])
    assert second.problem == "is being asked by somebody else"


def test_several_commands_at_the_same_time(start):
    """Commands wait for each other; none mistakes another's answer for its own."""
    start(WAIT)
    patient = "stubs.BELL_S_MAX = 60.0"  # each waits for all before it
    imports = "import sys; from pyruntime.runtime.cli import main; from pyruntime.runtime.observe import stubs"
    code = f"{imports}; {patient}; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "stack", MODEL]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for each in asking:
        output, _ = each.communicate()
        assert each.returncode == 0
        assert output.count(" in <module>\n") == 1


def test_nothing_acts_on_a_terminal(start, capsys):
    """Names of instances, threads and files, which a model chooses, are printed escaped."""
    start('threading.current_thread().name = "\\x1b[2J\\u202e"\n' + WAIT, instance="\x1b]0;\n")
    assert run_stack(MODEL) == 0
    output = capsys.readouterr().out
    assert output.startswith("\\u001b]0;\\n of ")
    assert "Thread \\u001b[2J\\u202e (most recent call first):" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    "heading", ["", "x\\n", '{"pid": 1, "bell": "", "model": "m", "version": "1", "instance": "i"}\\n']
)
def test_other_files_are_no_headings(heading):
    """A process that has such a file with something else in it is no stub."""
    code = f"""
import os, sys
os.write(os.memfd_create("pyruntime-stack"), b'{heading}')
print("ready")
sys.stdin.read()
"""
    command = [sys.executable, "-u", "-c", code]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ExitStack() as resources,
    ):
        assert process.stdout.readline() == b"ready\n"
        assert process.pid not in [stub.pid for stub in find_stubs(resources)]
