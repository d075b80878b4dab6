# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts for the server's cgroup, of either version, and in a container."""

import pytest

from pyruntime.runtime.instances.stub.oom_kills import OomKills

VERSION_2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
VERSION_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
PLACES = {
    "version 2": ("0::/a/b\n", "/sys/fs/cgroup/a/b/memory.events", VERSION_2),
    "version 2, in a container": ("0::/a/b\n", "/sys/fs/cgroup/memory.events", VERSION_2),
    "version 1": ("4:cpu,memory:/a\n0::/\n", "/sys/fs/cgroup/memory/a/memory.oom_control", VERSION_1),
    "version 1, in a container": ("4:memory:/a/b\n0::/\n", "/sys/fs/cgroup/memory/memory.oom_control", VERSION_1),
}


class Files:
    """The files of a system."""

    def __init__(self, texts):
        self.texts = texts

    def read(self, path):
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]


@pytest.mark.parametrize("place", PLACES)
def test_each_kill_that_is_counted_is_taken_for_one_death(place):
    cgroup, path, text = PLACES[place]
    files = Files({"/proc/self/cgroup": cgroup, path: text.format(5)})
    kills = OomKills(files.read)
    assert not kills.has_more()
    files.texts[path] = text.format(7)
    assert [kills.has_more() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("texts", [{}, {"/proc/self/cgroup": "0::/\n"}], ids=["no cgroups", "the topmost"])
def test_where_nothing_is_counted_nothing_is_said(texts):
    assert not OomKills(Files(texts).read).has_more()
