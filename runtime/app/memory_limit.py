# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory this process may use: that of the machine, or the limit of its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyruntime.runtime.observe.machine import memory

# Assumed where the kernel does not say: the default of --max-pending-bytes is its minimum then.
UNKNOWN_BYTES = 1 << 30


def memory_limit(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The limit in bytes. It reads files of the kernel, which takes less than a millisecond."""
    limits = list(_group_limits(proc, groups))
    with suppress(OSError):
        machine = memory((proc / "meminfo").read_text())
        if machine is not None:
            limits.append(machine.total)
    return min(limits, default=UNKNOWN_BYTES)


def _group_limits(proc: Path, groups: Path) -> Iterator[int]:
    """The limits of the process's control groups, and of all groups above them: each of them counts."""
    lines = ""
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text()
    for line in lines.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be that of the machine, while only the container's group is there.
        group = root / path.lstrip("/")
        for folder in {root, *(each for each in (group, *group.parents) if root in each.parents)}:
            with suppress(OSError, ValueError):  # "max" is no limit
                yield int((folder / name).read_text())
