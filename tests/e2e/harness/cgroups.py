# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Control groups with little memory, for servers of tests."""

from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from .waiting import wait_until


def memory_cgroup(process):
    """The folder of the control group that limits the memory of a process: of version 1 if there is one."""
    memberships = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
    version_1 = next((path for _, controllers, path in memberships if "memory" in controllers.split(",")), None)
    if version_1 is not None:
        return Path(f"/sys/fs/cgroup/memory{version_1}")
    return Path(f"/sys/fs/cgroup{next((path for _, controllers, path in memberships if not controllers), '/')}")


def _remove(folder):
    """Whether a cgroup is gone: it stays as long as one of its processes does."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def limiting_memory():
    """`with limiting_memory() as cgroup_of`: see the fixture of that name. The groups are gone at the end."""
    with ExitStack() as folders:

        def make(size):
            own = memory_cgroup("self")
            has_own = own.is_relative_to("/sys/fs/cgroup/memory")
            parent, limit = (own, "memory.limit_in_bytes") if has_own else (Path("/sys/fs/cgroup"), "memory.max")
            folder = parent / f"pyruntime_test_{uuid4().hex}"
            try:
                folder.mkdir()
                folders.callback(wait_until, partial(_remove, folder))
                (folder / limit).write_text(str(size))
            except OSError as error:
                pytest.skip(f"no cgroup with a limit of memory: {error}")
            return "sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"

        yield make
