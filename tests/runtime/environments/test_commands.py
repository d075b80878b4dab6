# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Programs run until they end, their time is up or they are cancelled, and leave no children behind."""

import asyncio
import os
import sys

import pytest

from pyruntime.runtime.environments.commands import ERROR_LINES, run
from pyruntime.utils.errors import LoadError

pytestmark = pytest.mark.processes

LIMIT_S = 60.0


def python(code, *, what="thinking", limit_s=LIMIT_S, held=()):
    """Run Python code as a program."""
    return run([sys.executable, "-c", code], what, limit_s, os.environ, "/", held)


def test_output():
    """Both outputs are returned, with bytes that are not text escaped."""
    code = "import os; os.write(1, b'one \\xff\\n'); os.write(2, b'two')"
    assert asyncio.run(python(code)) == "one \\xff\ntwo"


def test_surroundings(tmp_path):
    """The program runs in the given folder and environment, with an empty input, and with the given descriptors."""
    code = (
        "import os, sys; inode = os.fstat(int(sys.argv[1])).st_ino;"
        "print(os.getcwd(), os.environ['A'], len(os.environ), sys.stdin.read() == '', inode)"
    )
    with open(tmp_path / "lock", "w") as lock:
        command = [sys.executable, "-c", code, str(lock.fileno())]
        output = asyncio.run(
            run(command, "thinking", LIMIT_S, {"A": "b", "LC_CTYPE": "C.UTF-8"}, str(tmp_path), [lock.fileno()])
        )
        inode = os.fstat(lock.fileno()).st_ino
    assert output == f"{tmp_path} b 2 True {inode}\n"


def test_failure():
    """The error names the step and the exit code, and has the end of the output."""
    with pytest.raises(LoadError) as caught:
        asyncio.run(python("import sys; print(*range(100), sep='\\n'); sys.exit(3)"))
    message = str(caught.value)
    assert message.startswith("thinking failed: `")
    assert "exited with code 3; the end of what it wrote:\n" in message
    assert message.splitlines()[-ERROR_LINES:] == [str(number) for number in range(100 - ERROR_LINES, 100)]


def test_killed_and_silent():
    """A program that was killed without a word."""
    with pytest.raises(LoadError, match="was killed by signal 9 and wrote nothing"):
        asyncio.run(python("import os; os.kill(os.getpid(), 9)"))


def test_cannot_be_started():
    """A missing program is named."""
    with pytest.raises(LoadError, match="thinking failed: '/not/there' cannot be started: No such file"):
        asyncio.run(run(["/not/there"], "thinking", LIMIT_S, {}, "/"))


# Starts a child that holds a pipe and would run for ever, says so, and waits for ever itself.
FAMILY = """
import os, subprocess, sys
code = "import os, signal; os.write(int(os.sys.argv[1]), b'x'); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], pass_fds=[int(sys.argv[1])])
child.wait()
"""


def family(write_fd, limit_s=LIMIT_S):
    return run([sys.executable, "-c", FAMILY, str(write_fd)], "thinking", limit_s, os.environ, "/", [write_fd])


def test_time_limit():
    """After its time a program is ended with all that it started."""
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as pipe:
        with pytest.raises(LoadError, match=r"took more than 0\.001 s and was ended"):
            asyncio.run(family(write_fd, limit_s=0.001))
        os.close(write_fd)
        pipe.read()  # ends when the last process that holds the other end has


def test_cancelling():
    """A cancelled program is ended with its children."""

    async def cancel_once_it_runs(read_fd, write_fd):
        task = asyncio.create_task(family(write_fd))
        await asyncio.to_thread(os.read, read_fd, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as pipe:
        asyncio.run(cancel_once_it_runs(read_fd, write_fd))
        os.close(write_fd)
        assert pipe.read() == b""
