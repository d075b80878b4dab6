# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The side of `pyruntime stack` that is in a stub; tests/runtime/cli/test_stack.py has the command."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pyruntime.stub.stacks import FRAMES_MAX
from pyruntime.utils.stacks import END, LINK, STACK_SIGNAL, Heading, decode_heading

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parent.parent.parent
# Patience, not a measure: what takes longer hangs.
LIMIT_S = 60
POLL_S = 0.005
PRELUDE = """
import ctypes, itertools, os, signal, sys, threading
from pyruntime.stub import stacks

"""
INSTALL = 'stacks.install("m", "1", "m_0")\n'


@pytest.fixture
def start():
    """`start(code, python, install)`: a process that has its name, and ran `code` until it printed "ready"."""
    processes = []

    def start(code, python=sys.executable, install=INSTALL):
        process = subprocess.Popen(
            [python, "-u", "-c", PRELUDE + install + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "typeview")},
            cwd=ROOT / "typeview",  # the package in the root is without its parts
        )
        processes.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def links(pid):
    """The targets and paths of the open descriptors of a process."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # one that has just been closed: a command may still begin
            found.append((os.readlink(entry), entry))
    return found


def answer(process, until, signum=0):
    """Ask a process by its bell or by a signal; its heading, and its text up to `until`."""
    opened = links(process.pid)
    (path,) = [entry for link, entry in opened if link == LINK]
    with path.open("rb") as file:
        heading = decode_heading(file.readline())
        file.seek(0, os.SEEK_END)
        if signum:
            process.send_signal(signum)
        else:
            bell = next(entry for link, entry in opened if link == heading.bell)
            bell.write_bytes(b"?")
        text, deadline = b"", time.monotonic() + LIMIT_S
        while until not in text:
            assert time.monotonic() < deadline, text
            time.sleep(POLL_S)
            text += file.read()
    assert process.poll() is None
    return heading, text.decode()


KEEP_LOCK = 'print("ready"); sum(itertools.repeat(0))'
IDLE = """
def idle():
    print("ready")
    sys.stdin.read()
thread = threading.Thread(target=idle, name="an idle one")
thread.start()
thread.join()
"""


def check_bell(process):
    """The file says whose it is, and then what every thread does, under its name; but for ours."""
    heading, text = answer(process, END)
    assert heading._replace(bell="") == Heading(process.pid, "", "m", "1", "m_0")
    frame = r'  File "<string>", line \d+ in '
    assert re.search(rf"^Thread an idle one \(most recent call first\):\n{frame}idle$", text, re.M)
    assert re.search(rf"^Thread MainThread \(most recent call first\):\n(  .*\n)*{frame}<module>$", text, re.M)
    assert text.count("(most recent call first):") == 2


def check_signal(process):
    """A process that does not release the interpreter's lock answers a signal with its stack."""
    _, text = answer(process, b" in <module>\n", STACK_SIGNAL)
    assert "Current thread" in text


def test_bell(start):
    """Ringing the bell yields the stacks of all threads."""
    check_bell(start(IDLE))


def test_signal(start):
    """The signal is answered even by a process that C code keeps busy."""
    check_signal(start(KEEP_LOCK))


def test_other_pythons(start, other_environment):
    """Both work under each Python that a model may have."""
    python = other_environment / "bin" / "python"
    check_bell(start(IDLE, python))
    check_signal(start(KEEP_LOCK, python))


def test_bell_rings_again(start):
    """Each ring is answered, and what lies in the file then does not matter."""
    process = start(IDLE)
    for _ in range(3):
        _, text = answer(process, END)
        assert " in idle\n" in text


def test_bell_of_busy_threads(start):
    """Threads that run Python without a pause are shown as well, and are not disturbed."""
    process = start(
        """
def leaf(depth):
    return depth and [leaf(depth - 1) for _ in range(1)][0] + 1
begun = threading.Semaphore(0)
def work():
    begun.release()
    while True:
        assert leaf(20) == 20
for _ in range(3):
    threading.Thread(target=work).start()
for _ in range(3):
    begun.acquire()
print("ready")
work()
"""
    )
    for _ in range(100):
        _, text = answer(process, END)
        assert text.count(" in work\n") >= 3


def test_deep_recursion_is_cut(start):
    """Of a deep stack there are the innermost frames."""
    process = start(
        """
def down(depth):
    if not depth:
        print("ready")
        sys.stdin.read()
    down(depth - 1)
down(500)
"""
    )
    _, text = answer(process, END)
    assert text.count(" in down\n") == FRAMES_MAX
    assert text.endswith("  ...\n" + END.decode())


def test_installed_again(start):
    """A second call gives the process its new name, in its only file."""
    process = start('stacks.install("m", "1", "m_1"); print("ready"); sys.stdin.read()')
    assert answer(process, END)[0].instance == "m_1"
    heading, _ = answer(process, b" in <module>\n", STACK_SIGNAL)
    assert heading == Heading(process.pid, heading.bell, "m", "1", "m_1")


def test_forked_children_do_not_answer(start):
    """A forked child of the model has neither file, bell nor handler; the parent still has them."""
    process = start(
        """
if os.fork() == 0:
    print("ready")
    sys.stdin.readline()
    os._exit(signal.getsignal(stacks.STACK_SIGNAL) != signal.SIG_DFL)
_, status = os.wait()
print(os.WEXITSTATUS(status))
sys.stdin.read()
"""
    )
    heading, _ = answer(process, END)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert {LINK, heading.bell}.isdisjoint(link for link, _ in links(child))
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"0\n"
    assert answer(process, END)[0] == heading


def test_commands_do_not_inherit(start):
    """A command that the model executes has neither file, bell nor handler."""
    process = start(
        """
import subprocess
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    print("ready")
    sys.stdin.read()
"""
    )
    heading, _ = answer(process, END)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert {LINK, heading.bell}.isdisjoint(link for link, _ in links(child))
    caught = next(line for line in Path(f"/proc/{child}/status").read_text().splitlines() if "SigCgt" in line)
    assert int(caught.split()[1], 16) & (1 << (STACK_SIGNAL - 1)) == 0


@pytest.mark.parametrize("first", [True, False], ids=["first", "again"])
@pytest.mark.parametrize("libc", ["object()", "stacks.ctypes.CDLL(None, use_errno=True)"], ids=["lacking", "full"])
def test_system_that_cannot(start, first, libc):
    """Where there can be no such file the model runs all the same; a name that it had before it keeps."""
    process = start(
        f"""
import logging, resource
logging.basicConfig(stream=sys.stdout, format="%(message)s")
stacks.LOGGER.addHandler(logging.root.handlers[0])
libc = {libc}
stacks.ctypes.CDLL = lambda *args, **options: libc
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1, before))
print("ready")
stacks.install("m", "1", "m_1")
resource.setrlimit(resource.RLIMIT_NOFILE, (before, before))
assert len(os.listdir("/proc/self/fd")) == before
print("done")
sys.stdin.read()
""",
        install="" if first else INSTALL,
    )
    assert process.stdout.readline().startswith(b"`pyruntime stack` will not find this process under its name: ")
    assert process.stdout.readline() == b"done\n"
    if not first:
        assert answer(process, END)[0].instance == "m_0"
