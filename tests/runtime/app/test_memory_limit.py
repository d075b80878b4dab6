# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory the server may use, by the files of the kernel."""

import pytest

from pyruntime.runtime.app.memory_limit import UNKNOWN_BYTES, memory_limit

GIB = 1 << 30
MACHINE = {"proc/meminfo": f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {8 * GIB >> 10} kB\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (MACHINE, 16 * GIB),
        ({}, UNKNOWN_BYTES),
        ({"proc/meminfo": "nonsense"}, UNKNOWN_BYTES),
        # Version 2: the group's own limit, one of a group above it, none, and a container that sees only its group.
        (
            {**MACHINE, "proc/self/cgroup": "0::/a/b\n", "groups/a/b/memory.max": f"{2 * GIB}\n"},
            2 * GIB,
        ),
        (
            {
                **MACHINE,
                "proc/self/cgroup": "0::/a/b\n",
                "groups/a/b/memory.max": f"{4 * GIB}\n",
                "groups/a/memory.max": f"{3 * GIB}\n",
            },
            3 * GIB,
        ),
        ({**MACHINE, "proc/self/cgroup": "0::/a\n", "groups/a/memory.max": "max\n"}, 16 * GIB),
        ({**MACHINE, "proc/self/cgroup": "0::/a\n", "groups/memory.max": f"{GIB}\n"}, GIB),
        # Version 1.
        (
            {
                **MACHINE,
                "proc/self/cgroup": "5:cpu,memory:/c\n3:pids:/c\n0::/\n",
                "groups/memory/c/memory.limit_in_bytes": f"{GIB}\n",
            },
            GIB,
        ),
        (
            {
                **MACHINE,
                "proc/self/cgroup": "4:memory:/c\n",
                "groups/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
            },
            16 * GIB,
        ),
        ({**MACHINE, "proc/self/cgroup": "malformed"}, 16 * GIB),
    ],
)
def test_limit(tmp_path, files, limit):
    """The smallest of the machine's memory and the limits of the groups that the process is in."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limit(tmp_path / "proc", tmp_path / "groups") == limit
