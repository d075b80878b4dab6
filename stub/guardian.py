# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parent of one stub: starts it, reports how it ends, and ends whatever it leaves behind.

As a subreaper it is the parent of all orphans of the model, also of those that moved to another session. So which
process belongs to which stub is never a question. It needs neither the launcher nor the host to do its work: a host
that is gone, even by SIGKILL, is an end of file on the control socket. utils/launching.py has what it says.

It is forked from the launcher, and so shares its memory. It stays small by touching little of it.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, NoReturn, Optional, Tuple

import msgpack
import setproctitle

from pyruntime.stub.descendants import ask_to_end, become_subreaper, kill_children, reap
from pyruntime.stub.main import run
from pyruntime.utils.launching import (
    EXITED,
    FAILED,
    KILL,
    STARTED,
    Interpreter,
    Order,
    decode_order,
    encode_reply,
)

# How long processes that a stub leaves behind have to clean up after SIGTERM, in seconds, before SIGKILL.
LEFT_BEHIND_S_MAX = 2.0
BOOTSTRAP = str(Path(__file__).parent / "bootstrap.py")
# A control packet is shorter.
PACKET_BYTES = 16
# Signals that a terminal or a service manager sends to all processes of the server. Only the host decides what follows.
SHARED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def ignore_signals() -> None:
    """Ignore what is meant for the host, in this process and in those that it forks, and SIGCHLD."""
    # Not SIG_IGN, which a program that is executed would inherit.
    for signum in (*SHARED_SIGNALS, signal.SIGCHLD):
        signal.signal(signum, _ignore)


def note_signals() -> Tuple[socket.socket, socket.socket]:
    """Sockets of which the first becomes readable after each signal that has a handler; the signals write to the other.

    They are for one process: its forks call `forget_signals`.
    """
    wake_up, written = socket.socketpair()
    wake_up.setblocking(False)
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    return wake_up, written


def forget_signals(noted: Tuple[socket.socket, socket.socket]) -> None:
    """Undo `note_signals` of the process that this one was forked from."""
    signal.set_wakeup_fd(-1)  # from Python 3.12 on asyncio has done so, if it is imported
    for sock in noted:
        sock.close()


def guard(control: socket.socket, descriptors: Dict[str, int], models_files_max: int) -> NoReturn:
    """Run a guardian in this process, which was just forked, and end it.

    Raises SystemExit in the stub that it forks, once the model has ended. All callers let it pass, so that the stub
    ends as every Python program does: with atexit handlers, destructors, and buffers written.
    `models_files_max` is the soft limit of descriptors in stubs.
    """
    # A collection would write to every object, and so copy the pages that are shared with the launcher.
    gc.disable()
    try:
        guardian = _start(control, descriptors, models_files_max)
        guardian.watch()
    except SystemExit:  # of the stub
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _start(control: socket.socket, descriptors: Dict[str, int], models_files_max: int) -> "_Guardian":
    try:
        noted = note_signals()
        become_subreaper()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (models_files_max, most))
        with open(descriptors.pop("order"), "rb") as file:
            file.seek(0)
            order = decode_order(file.read())
        setproctitle.setproctitle(f"pyruntime guardian of {order.name}")
        if order.interpreter is None:
            pid = _fork(order, descriptors, control, noted)
        else:
            pid = _execute(order, order.interpreter, descriptors)
    except OSError as exc:
        control.send(encode_reply(FAILED, exc.errno or 0))
        os._exit(0)
    # Otherwise the host would not notice that the stub has closed them.
    for fd in descriptors.values():
        os.close(fd)
    return _Guardian(control, noted, pid)


def _ignore(signum: int, frame: Any) -> None:
    pass


def _fork(
    order: Order, descriptors: Dict[str, int], control: socket.socket, noted: Tuple[socket.socket, socket.socket]
) -> int:
    """Start a stub of this interpreter, which has its code loaded. Returns its pid, and raises SystemExit in the stub.

    The sockets are closed there.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        forget_signals(noted)
        for signum in (*SHARED_SIGNALS, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        gc.enable()
        os.environ.update(order.variables)
        run(
            order.name,
            socket.socket(fileno=descriptors["sock"]),
            socket.socket(fileno=descriptors["grants"]),
            descriptors["output_fd"],
            descriptors["requests_fd"],
            descriptors["responses_fd"],
            order.growth_bytes,
        )
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


def _execute(order: Order, interpreter: Interpreter, descriptors: Dict[str, int]) -> int:
    """Start a stub under an interpreter of its own. Returns its pid. Raises OSError if that cannot be executed."""
    arguments = {
        "name": order.name,
        "growth_bytes": order.growth_bytes,
        "msgpack": os.path.dirname(msgpack.__file__),
        "at_terminal": interpreter.at_terminal,
        **descriptors,
    }
    # Only the server's own process group can read from the terminal.
    shared = interpreter.at_terminal
    output_fd = descriptors["output_fd"]
    process = subprocess.Popen(
        [interpreter.path, BOOTSTRAP, json.dumps(arguments)],
        stdin=None if shared else subprocess.DEVNULL,
        # Output from before the stub's own code runs is logged as well, such as why the interpreter fails.
        stdout=None if shared else output_fd,
        stderr=None if shared else output_fd,
        env={**interpreter.variables, **order.variables},
        pass_fds=list(descriptors.values()),
        process_group=None if shared else 0,
    )
    process.returncode = 0  # the guardian itself waits for it
    return process.pid


class _Guardian:
    """The guardian of a stub that runs."""

    def __init__(self, control: socket.socket, noted: Tuple[socket.socket, socket.socket], stub: int) -> None:
        """`noted` is of `note_signals`, `stub` a child of this process."""
        self._control = control
        self._wake_up, self._written = noted
        self._stub = stub
        # Set once the stub has ended: when what it left behind is killed.
        self._deadline: Optional[float] = None
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wake_up, select.POLLIN)
        self._say(STARTED, stub)

    def watch(self) -> NoReturn:
        """Wait for the end of the stub and of everything below it, then end this process."""
        while True:
            for fd, _ in self._poll.poll(self._patience_ms()):
                if fd == self._control.fileno():
                    self._heed()
                else:
                    self._wake_up.recv(4096)
            ended, any_left = reap()
            if self._stub in ended:
                self._say(EXITED, ended[self._stub])
                self._deadline = time.monotonic() + LEFT_BEHIND_S_MAX
                if any_left:
                    ask_to_end()
            if self._deadline is not None and not any_left:
                os._exit(0)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                kill_children()

    def _patience_ms(self) -> Optional[float]:
        """How long to wait for the next event; None for ever.

        After the deadline each death is an event, and there is no other way to become a child.
        """
        left = None if self._deadline is None else self._deadline - time.monotonic()
        return None if left is None or left < 0 else left * 1000 + 1

    def _heed(self) -> None:
        """Read the control socket."""
        try:
            packet = self._control.recv(PACKET_BYTES)
        except OSError:  # the host was killed and left packets unread
            packet = b""
        if not packet:
            self._poll.unregister(self._control)
        if packet in (KILL, b"") and self._deadline is None:
            os.kill(self._stub, signal.SIGKILL)

    def _say(self, kind: bytes, number: int) -> None:
        with suppress(OSError):  # the host has ended
            self._control.send(encode_reply(kind, number))
