# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The descriptors of this process: how many it may have, and how many are open."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Descriptors that no model gets, so that a server full of models can be asked how it is: connections to a port that has
# been full for long, some of them for questions about health, those of metrics, and files that are open for a moment.
KEPT_FOR_CLIENTS = 96
# Of those, so many are free before a stub starts: for connections that come meanwhile.
FREE_FOR_CLIENTS = 24
# What a stub takes in the host while it starts, and afterwards; in both cases with those of its region. From Python
# 3.13 on, where a mapping has no descriptor, it is one less.
STARTING_STUB = 12
STUB = 7
REGION = 2

# How many of the open ones are connections of clients, as of the last count.
of_connections = 0
# How many stubs are being started, or have been told to end. They give descriptors back soon.
_changing = 0


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one. Returns the soft limit from before.

    Programs that the server starts get that one, because some take long, or fail, under a high one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # refused by a sandbox; the limit is as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def limit() -> int | None:
    """How many descriptors this process may have; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def room_for(name: str) -> Iterator[None]:
    """Start the stub `name` meanwhile, whose region is there.

    Raises OSError (EMFILE) if the descriptors that are left do not suffice.
    """
    _check_room(name)
    begin_change()
    try:
        yield
    finally:
        end_change()


def begin_change() -> None:
    """A stub will give descriptors back."""
    global _changing
    _changing += 1


def end_change() -> None:
    """It has."""
    global _changing
    _changing -= 1


def _check_room(name: str) -> None:
    most = limit()
    if most is None:
        return
    free = max(0, most - open_count())
    needed = STARTING_STUB - REGION
    if _for_models(most) < needed or free < needed + FREE_FOR_CLIENTS:
        message = (
            f"{name} needs {needed} more descriptors, and of {most} there are {free} left, of which up to "
            f"{KEPT_FOR_CLIENTS} are kept for clients"
        )
        raise OSError(errno.EMFILE, message)


def shortage(stubs: int) -> str:
    """Why a model with so many `stubs` can have no room, even if no client was connected; "" if it may have.

    While other stubs start or end nobody can say.
    """
    most = limit()
    if most is None or _changing:
        return ""
    left = max(0, _for_models(most))
    needed = STUB * (stubs - 1) + STARTING_STUB
    if needed <= left:
        return ""
    return (
        f"its {stubs} process{'es need' if stubs > 1 else ' needs'} {needed} descriptors in the server, and of {most} "
        f"only {left} are left for models. Unload other models, or raise the server's hard limit (`ulimit -Hn`, or "
        "LimitNOFILE= of systemd)"
    )


def _for_models(most: int) -> int:
    """How many are left for models; below 0 if they have some of those for clients."""
    return most - KEPT_FOR_CLIENTS - (open_count() - of_connections)


def open_count() -> int:
    """How many descriptors are open."""
    # Since Linux 6.2 the folder's size is their number; before, it is 0.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
