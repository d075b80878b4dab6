# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory is left, by what systems say of it."""

import pytest

from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.memory_left import (
    KEPT_BYTES_MAX,
    KEPT_SHARE,
    Cgroup,
    Machine,
    cgroup_files,
    check_limits,
    check_memory_left,
    find_limits,
)

GIB = 1 << 30
MIB = 1 << 20
MEMORY_INFO = """\
MemTotal:       16777216 kB
MemFree:          102400 kB
MemAvailable:    2097152 kB
SwapTotal:       1048576 kB
SwapFree:        1048576 kB
HugePages_Total:       0
"""
V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


class System:
    """Files of a system: a machine of 16 GiB, of which 2 GiB and 1 GiB of swap space are available."""

    def __init__(self, files=None):
        self.files = {"/proc/meminfo": MEMORY_INFO, **(files or {})}

    def __call__(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def left(self):
        return [limit.left() for limit in find_limits(self)]


def v2(folder, limit, used, cached=0):
    """The files of a cgroup of version 2."""
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 7\nfile 9\ninactive_file {cached // 2}\nactive_file {cached - cached // 2}\n",
    }


def v1(folder, limit, used, cached=0):
    """The files of a cgroup of version 1."""
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}\ntotal_active_file 0\n",
    }


class TestMachine:
    def test_left(self):
        """The sum of available memory and swap space, which the kernel uses before it kills a process."""
        left = Machine(System()).left()
        assert left == (16 * GIB, 3 * GIB)
        assert left.kept == KEPT_BYTES_MAX


class TestCgroups:
    def test_none(self):
        """Without cgroups only the machine counts."""
        assert System().left() == [(16 * GIB, 3 * GIB)]

    def test_of_version_2(self):
        """A limit of the cgroup, and of each above it; one without a limit does not count."""
        system = System(
            {
                "/proc/self/cgroup": "0::/slice/server\n",
                **v2(f"{V2}/slice", 2 * GIB, GIB),
                **v2(f"{V2}/slice/server", "max", MIB),
            }
        )
        assert system.left()[1:] == [(2 * GIB, GIB)]
        system.files.update(v2(f"{V2}/slice/server", GIB, GIB, cached=MIB))
        assert system.left()[1:] == [(GIB, MIB), (2 * GIB, GIB)]

    def test_of_version_1(self):
        """The same for the hierarchy of memory, whose numbers include the cgroups below."""
        system = System(
            {
                "/proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/a/b\n3:cpuset:/a\n0::/\n",
                **v1(V1, 9223372036854771712, GIB),
                **v1(f"{V1}/a", 9223372036854771712, GIB),
                **v1(f"{V1}/a/b", GIB, GIB - MIB, cached=2 * MIB),
            }
        )
        assert system.left()[1:] == [(GIB, 3 * MIB)]

    @pytest.mark.parametrize("membership", ["0::/", "0::/docker/0123"])
    def test_of_a_container(self, membership):
        """The topmost cgroup that a container sees is its own, whatever its path on the machine."""
        system = System({"/proc/self/cgroup": membership + "\n", **v2(V2, GIB, MIB)})
        assert system.left()[1:] == [(GIB, GIB - MIB)]

    def test_that_uses_more_than_its_limit(self):
        """After its limit was lowered a cgroup has nothing left."""
        system = System({"/proc/self/cgroup": "0::/\n", **v2(V2, MIB, GIB)})
        assert system.left()[1:] == [(MIB, 0)]

    def test_whose_limit_changes(self):
        """The limit is read each time."""
        system = System({"/proc/self/cgroup": "0::/\n", **v2(V2, GIB, MIB)})
        (limit,) = find_limits(system)[1:]
        system.files.update(v2(V2, 2 * GIB, MIB))
        assert limit.left() == (2 * GIB, 2 * GIB - MIB)
        system.files.update(v2(V2, "max", MIB))
        assert limit.left().available > 2**50

    def test_names_of_files(self):
        """Whose limit cannot be read has none."""
        assert Cgroup(System(), V2, "memory.max", "memory.current", "").limit() is None


class TestCheck:
    def test_enough(self):
        """A reservation that leaves enough is allowed."""
        check_limits(3 * GIB - KEPT_BYTES_MAX, find_limits(System()))

    def test_too_little(self):
        """A reservation that leaves less than is kept is refused, with the numbers."""
        size = 3 * GIB - KEPT_BYTES_MAX + 1
        with pytest.raises(
            OutOfMemoryError,
            match=rf"^no shared memory left for {size} bytes: {3 * GIB} bytes are available, of which {KEPT_BYTES_MAX} "
            r"are kept free$",
        ):
            check_limits(size, find_limits(System()))

    def test_small_cgroup(self):
        """A cgroup of little memory keeps a share of it."""
        system = System({"/proc/self/cgroup": "0::/\n", **v2(V2, 64 * MIB, 0)})
        kept = 64 * MIB // KEPT_SHARE
        check_limits(64 * MIB - kept, find_limits(system))
        with pytest.raises(OutOfMemoryError, match=rf" {64 * MIB} bytes are available, of which {kept} are kept free$"):
            check_limits(64 * MIB - kept + 1, find_limits(system))

    @pytest.mark.parametrize("text", ["", "MemTotal: 1 kB\n", "MemTotal: many kB\n"])
    def test_system_that_does_not_say(self, text):
        """If the system does not report what is left, no size is refused."""
        check_limits(1 << 50, find_limits(System({"/proc/meminfo": text})))

    def test_this_system(self):
        """The files of the system that runs this test can be read."""
        check_memory_left(1)
        with pytest.raises(OutOfMemoryError):
            check_memory_left(1 << 60)


def test_files_for_native_code():
    """They are those that are read here, of cgroups with a limit."""
    system = System(v2(f"{V2}/a", GIB, MIB))
    cgroup = Cgroup(system, f"{V2}/a", "memory.max", "memory.current", "")
    limit, usage, statistics, caches = cgroup.files
    assert [system(each) for each in (limit, usage)] == [f"{GIB}\n", f"{MIB}\n"]
    assert {line.split()[0] for line in system(statistics).splitlines()} > set(caches)
    assert cgroup_files() == [each.files for each in find_limits(read) if isinstance(each, Cgroup)]


def read(path):
    with open(path) as file:
        return file.read()
