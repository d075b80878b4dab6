# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a process and its descendants cost, from /proc."""

import os

TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """(parent pid, seconds of CPU including reaped children, name) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            text = f.read().decode("latin-1")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    return int(rest[1]), sum(int(x) for x in rest[11:15]) / TICK, name


def tree(root):
    """Pids of root and everything below it, root first."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            st = _stat(int(entry))
            if st:
                children.setdefault(st[0], []).append(int(entry))
    out, todo = [], [root]
    while todo:
        pid = todo.pop(0)
        out.append(pid)
        todo += children.get(pid, [])
    return out


def cpu_seconds(root):
    """(CPU seconds of the root process, CPU seconds of all below it)."""
    own = below = 0.0
    for pid in tree(root):
        st = _stat(pid)
        if st:
            if pid == root:
                own += st[1]
            else:
                below += st[1]
    return own, below


def memory(pid):
    """{'rss', 'pss', 'private', 'threads', 'name'} of one process; sizes in MiB."""
    out = {"rss": 0.0, "pss": 0.0, "private": 0.0, "threads": 0, "name": ""}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                key, _, value = line.partition(":")
                if key == "Rss":
                    out["rss"] = int(value.split()[0]) / 1024
                elif key == "Pss":
                    out["pss"] = int(value.split()[0]) / 1024
                elif key in ("Private_Clean", "Private_Dirty"):
                    out["private"] += int(value.split()[0]) / 1024
        out["threads"] = len(os.listdir(f"/proc/{pid}/task"))
        out["name"] = _stat(pid)[2]
    except (OSError, TypeError):
        pass
    return out


def machine():
    """CPU seconds since boot, all cores together: (busy, stolen by the hypervisor, all)."""
    with open("/proc/stat") as f:
        user, nice, system, idle, iowait, irq, softirq, steal = (int(x) / TICK for x in f.readline().split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + idle + iowait + steal
