# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of `pyruntime doctor`, on this machine and on machines that lack something."""

import io
import json
import resource
import socket
import sys
from functools import partial

import pytest

from pyruntime.runtime.cli import doctor, main
from pyruntime.runtime.cli.doctor import NOTE, OK, PROBLEM, Finding
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.memory_left import Machine
from tests.plugins.gpus import StandInMachine


def only(check):
    (finding,) = check()
    return finding


def fail(error):
    def call(*arguments):
        raise error

    return call


def test_this_machine(capsys):
    """Every check has a finding here, and no installation that runs its tests lacks a part."""
    status = main(["doctor", "--json"])
    found = [Finding(**finding) for finding in json.loads(capsys.readouterr().out)]
    assert {finding.state for finding in found} <= {OK, NOTE, PROBLEM}
    assert status == int(any(finding.state == PROBLEM for finding in found))
    states = {finding.subject: finding.state for finding in found}
    assert (states["gRPC"], states["C++ backends"]) == (OK, OK)
    assert all(bool(finding.advice) is (finding.state != OK) for finding in found)


@pytest.mark.parametrize(("state", "status"), [(OK, 0), (NOTE, 0), (PROBLEM, 1)])
def test_status(monkeypatch, capsys, state, status):
    """A problem is a failure, a note is none; the table has both."""
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [Finding("a\x1b", state, "b", "c")],))
    monkeypatch.setattr(doctor, "check_ports", lambda ports: [])
    assert main(["doctor"]) == status
    assert capsys.readouterr().out.splitlines()[1].split() == ["a\\u001b", state, "b", "c"]


def test_extension_that_cannot_be_loaded(monkeypatch):
    """The finding has the reason, and the advice is to install what is missing."""
    monkeypatch.setitem(sys.modules, "pyruntime.runtime.native._http2", None)
    grpc, backends = doctor.check_extensions()
    assert (grpc.subject, grpc.state, backends.state) == ("gRPC", PROBLEM, OK)
    assert "libnghttp2" in grpc.advice


def test_port_in_use():
    """The advice names the option for another port."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        finding = only(partial(doctor.check_ports, {"gRPC": port}))
    assert (finding.state, finding.advice) == (NOTE, "choose another one with --grpc-port")
    assert finding.found.startswith(f"{port}: ")


def test_ports_asked_for(capsys):
    """The ports that are asked for are looked at, and no others."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        main(["doctor", "--json", f"--http-port={port}"])
    found = {each["subject"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["port for HTTP"]["state"] == NOTE
    assert found["port for HTTP"]["found"].startswith(f"{port}: ")
    assert "8001" in found["port for gRPC"]["found"]


def test_no_shared_memory(monkeypatch):
    """A machine that refuses regions cannot serve."""
    monkeypatch.setattr(doctor, "create_region", fail(OutOfMemoryError("it cannot be made")))
    findings = {finding.subject: finding for finding in doctor.check_memory()}
    assert findings["shared memory"][1:3] == (PROBLEM, "it cannot be made")


def test_little_memory(monkeypatch):
    """Memory that a server would not have to itself is a problem."""
    texts = {"/proc/meminfo": "MemTotal: 524288 kB\nMemAvailable: 65536 kB\nSwapFree: 0 kB\n"}
    monkeypatch.setattr(doctor, "find_limits", lambda read: [Machine(texts.__getitem__)])
    finding = next(iter(doctor.check_memory()))
    assert finding[:3] == ("memory of the machine", PROBLEM, "64 of 512 MiB available")


@pytest.mark.parametrize(
    ("hard", "expected"),
    [(resource.RLIM_INFINITY, (OK, "no limit")), (4096, (OK, "at most 4096")), (1024, (NOTE, "at most 1024"))],
)
def test_descriptors(monkeypatch, hard, expected):
    """A low hard limit is noted: the server cannot raise it."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, hard))
    assert only(doctor.check_descriptors)[1:3] == expected


def test_environments(monkeypatch, tmp_path):
    """A cache that cannot be used is noted, and the advice says how to have another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert only(doctor.check_environments).state == OK
    monkeypatch.setattr(doctor.os, "access", lambda *arguments: False)
    finding = only(doctor.check_environments)
    assert finding[1:3] == (NOTE, f"{tmp_path} cannot be written to")
    assert "XDG_CACHE_HOME" in finding.advice


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """`gpus(...)`: a machine with these GPUs."""
    return partial(StandInMachine, tmp_path, monkeypatch)


def test_gpus(gpus):
    """Each GPU with the number that configurations use; one that is too old is noted."""
    gpus({"uuid": "GPU-a", "name": "A100", "used_bytes": 1 << 30}, {"uuid": "GPU-b", "compute_capability": [5, 2]})
    assert list(doctor.check_gpus()) == [
        ("GPU 0", OK, "A100, compute capability 8, 15.0 of 16.0 GiB free, GPU-a", ""),
        (
            "GPU 1",
            NOTE,
            "Stand-in, compute capability 5.2, 16.0 of 16.0 GiB free, GPU-b",
            "not used, unless --min-supported-compute-capability is below 6",
        ),
    ]


def test_hidden_gpus(gpus, monkeypatch):
    """GPUs that the environment hides are a usual mistake."""
    gpus({"uuid": "GPU-a"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert only(doctor.check_gpus)[1:] == (
        NOTE,
        "none with CUDA_VISIBLE_DEVICES='3'",
        "unset CUDA_VISIBLE_DEVICES, if there are some",
    )


def test_no_gpus(gpus, monkeypatch):
    """A machine without GPUs is no problem."""
    gpus()
    monkeypatch.setattr(doctor, "Nvml", fail(OSError("no library")))
    assert only(doctor.check_gpus)[1:3] == (NOTE, "no library")


def test_a_driver_without_gpus(gpus, monkeypatch):
    """There is a driver, and nothing to drive."""
    gpus()
    monkeypatch.setattr(doctor, "Nvml", io.BytesIO)
    assert only(doctor.check_gpus)[1:3] == (NOTE, "the driver finds none")
