# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime doctor`: checks an installation and its machine, and says what to do about each problem."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyruntime
from pyruntime.runtime.cli.commands.show import print_json, show_table
from pyruntime.runtime.environments.cache import cache_root
from pyruntime.runtime.gpus.available import CAPABILITY_MIN, capability
from pyruntime.runtime.regions import create_region
from pyruntime.utils.errors import LoadError, OutOfMemoryError
from pyruntime.utils.gpu.inventory import find_gpus
from pyruntime.utils.gpu.nvml import Nvml
from pyruntime.utils.gpu.visible import VISIBLE
from pyruntime.utils.memory_left import KEPT_BYTES_MAX, find_limits

# A server with fewer descriptors can have few models and few clients.
DESCRIPTORS_MIN = 4096
# The parts in C and C++, and what is missing without each.
EXTENSIONS = {"_http2": "gRPC", "_triton": "C++ backends"}

OK, NOTE, PROBLEM = "ok", "note", "problem"
_HEADINGS = ("Subject", "State", "Found", "What to do")
# The value of vm.overcommit_memory with which the kernel limits commitments.
_STRICT = "2"


class Finding(NamedTuple):
    """The result of one check. `state` is OK, NOTE or PROBLEM; `advice` is "" if there is nothing to do."""

    subject: str
    state: str
    found: str
    advice: str = ""


Check = Callable[[], Iterable[Finding]]


def run_doctor(ports: Mapping[str, int], as_json: bool = False) -> int:
    """Print the findings of all checks, for a server with these `ports`. Returns 1 if one is a problem, else 0."""
    found = [finding for check in CHECKS for finding in check()] + list(check_ports(ports))
    if as_json:
        print_json([finding._asdict() for finding in found])
    else:
        show_table(_HEADINGS, found)
    return int(any(finding.state == PROBLEM for finding in found))


def check_versions() -> Iterator[Finding]:
    """The versions that a report of a fault should name."""
    found = f"{pyruntime.__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Finding("pyruntime", OK, found)


def check_extensions() -> Iterator[Finding]:
    """The parts in C and C++ can be loaded."""
    for name, purpose in EXTENSIONS.items():
        try:
            importlib.import_module(f"pyruntime.runtime.native.{name}")
        except ImportError as exc:
            advice = "install libnghttp2 (apt-get install libnghttp2-14)" if name == "_http2" else ""
            yield Finding(purpose, PROBLEM, str(exc), advice or "install a wheel of pyruntime again")
        else:
            yield Finding(purpose, OK, "built in")


def check_ports(ports: Mapping[str, int]) -> Iterator[Finding]:
    """The ports, by service, are free."""
    for service, port in ports.items():
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("", port))
            except OSError as exc:
                advice = f"choose another one with --{service.lower()}-port"
                yield Finding(f"port for {service}", NOTE, f"{port}: {exc.strerror}", advice)
            else:
                yield Finding(f"port for {service}", OK, f"{port} is free")


def check_memory() -> Iterator[Finding]:
    """There is memory for tensors, and the kernel gives it as regions need it."""
    for limit in find_limits(lambda path: Path(path).read_text()):
        try:
            left = limit.left()
        except (OSError, KeyError, ValueError):
            continue
        subject = f"memory of the {type(limit).__name__.lower()}"
        found = f"{left.available >> 20} of {left.total >> 20} MiB available"
        if left.available < KEPT_BYTES_MAX + left.kept:
            yield Finding(subject, PROBLEM, found, "free some, or give the container more")
        else:
            yield Finding(subject, OK, found)
    try:
        create_region("a check").close()
    except OutOfMemoryError as exc:
        yield Finding("shared memory", PROBLEM, str(exc), "allow memfd_create in the container's seccomp profile")
    else:
        yield Finding("shared memory", OK, "regions can be created; /dev/shm is not needed")
    if _text("/proc/sys/vm/overcommit_memory") == _STRICT:
        advice = "set it to 0 where models are not trusted: see decision 0023"
        yield Finding("vm.overcommit_memory", NOTE, _STRICT, advice)


def check_descriptors() -> Iterator[Finding]:
    """A process may have enough descriptors. The server raises its soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    found = "no limit" if unlimited else f"at most {hard}"
    if unlimited or hard >= DESCRIPTORS_MIN:
        yield Finding("open files", OK, found)
    else:
        yield Finding("open files", NOTE, found, f"raise the hard limit to {DESCRIPTORS_MIN} or more (ulimit -Hn)")


def check_environments() -> Iterator[Finding]:
    """Environments of models can be kept in the user's cache."""
    advice = "set XDG_CACHE_HOME to a folder that can be written to; only models with environments need it"
    try:
        root = cache_root(os.environ)
    except LoadError as exc:
        yield Finding("environments", NOTE, str(exc), advice)
        return
    existing = next(folder for folder in (Path(root), *Path(root).parents) if folder.exists())
    if os.access(existing, os.W_OK):
        yield Finding("environments", OK, root)
    else:
        yield Finding("environments", NOTE, f"{existing} cannot be written to", advice)


def check_gpus() -> Iterator[Finding]:
    """The GPUs that instances may be on, by their numbers."""
    gpus = find_gpus()
    for gpu in gpus:
        usable = capability(gpu) >= CAPABILITY_MIN
        yield Finding(
            f"GPU {gpu.ordinal}",
            OK if usable else NOTE,
            f"{gpu.name}, compute capability {capability(gpu):g}, {gpu.free_bytes / (1 << 30):.1f} of "
            f"{gpu.total_bytes / (1 << 30):.1f} GiB free, {gpu.uuid}",
            "" if usable else f"not used, unless --min-supported-compute-capability is below {CAPABILITY_MIN:g}",
        )
    if gpus:
        return
    hidden = os.environ.get(VISIBLE)
    if hidden is not None:
        yield Finding("GPUs", NOTE, f"none with {VISIBLE}='{hidden}'", f"unset {VISIBLE}, if there are some")
        return
    try:
        Nvml().close()
    except OSError as exc:
        yield Finding("GPUs", NOTE, str(exc), "nothing, if this machine has none; else install the driver")
    else:
        yield Finding("GPUs", NOTE, "the driver finds none", "nothing, if this machine has none")


CHECKS: tuple[Check, ...] = (
    check_versions,
    check_extensions,
    check_memory,
    check_descriptors,
    check_environments,
    check_gpus,
)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
