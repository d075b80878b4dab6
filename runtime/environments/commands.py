# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a program that makes or examines an environment, with a time limit. Errors quote the program's output."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pyruntime.utils.errors import LoadError

# The end of a program's output that is kept: errors come last.
OUTPUT_BYTES_KEPT = 1 << 20
# The end of it that an error message quotes; the repository index shows the message.
ERROR_LINES = 20
ERROR_CHARS = 4096
READ_BYTES = 64 << 10


async def run(
    command: Sequence[str], what: str, limit_s: float, variables: Mapping[str, str], cwd: str, held: Sequence[int] = ()
) -> str:
    """Run a program to its end and return its output, stderr included. `what` names the step in errors.

    The program inherits the descriptors in `held`. Raises LoadError if it cannot be started, fails, or takes more than
    `limit_s` seconds. Cancelling kills the program and its descendants.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=variables,
            cwd=cwd,
            pass_fds=held,
            start_new_session=True,
        )
    except OSError as exc:
        raise LoadError(f"{what} failed: '{command[0]}' cannot be started: {exc.strerror}") from exc
    output = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            await _read(process, output)
            code = await process.wait()
    except TimeoutError as exc:
        reason = f"took more than {limit_s:g} s and was ended"
        raise LoadError(_sentence(what, command, reason, output)) from exc
    finally:
        # The session contains all descendants of the program. None of them is useful without it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        reason = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
        raise LoadError(_sentence(what, command, reason, output))
    return output.decode("utf-8", "backslashreplace")


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    assert process.stdout is not None  # asked for
    while data := await process.stdout.read(READ_BYTES):
        output += data
        del output[:-OUTPUT_BYTES_KEPT]


def _sentence(what: str, command: Sequence[str], reason: str, output: bytearray) -> str:
    lines = output.decode("utf-8", "backslashreplace").splitlines()[-ERROR_LINES:]
    text = "\n".join(lines)[-ERROR_CHARS:].strip()
    end = f"; the end of what it wrote:\n{text}" if text else " and wrote nothing"
    return f"{what} failed: `{shlex.join(command)}` {reason}{end}"
