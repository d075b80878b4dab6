# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a machine, over the time of a server."""

import logging

from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.gpus.machine import MachineGpus
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.gpu.driver import GpuProperties

SETTINGS = ServerSettings((), min_supported_compute_capability=7.0, model_load_gpu_limits={1: 0.5})


def gpu(number, uuid, free=100, capability=(8, 0)):
    return GpuProperties(number, uuid, "Stand-in", capability, 1 << 30, free, False)


def test_numbers_stay(caplog):
    """Each reading has the memory of its moment; a GPU keeps its number, and one that is lost has no memory left."""
    readings = [
        [gpu(0, "GPU-a"), gpu(1, "GPU-b", capability=(6, 1))],
        [gpu(0, "GPU-b", 70), gpu(1, "GPU-a", 80)],
        [gpu(0, "GPU-b", 60), gpu(1, "GPU-c", 90)],
    ]
    machine = MachineGpus(SETTINGS, iter(readings).__next__)
    with caplog.at_level(logging.INFO):
        first = machine.read()
    assert first == AvailableGpus(tuple(readings[0]), 7.0, {1: 0.5})
    assert [(each.ordinal, each.uuid, each.free_bytes) for each in machine.read().all] == [
        (0, "GPU-a", 80),
        (1, "GPU-b", 70),
    ]
    assert [each.free_bytes for each in machine.read().all] == [0, 60]
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0 is Stand-in (GPU-a), compute capability 8, 1.0 GiB",
        "GPU 1 is Stand-in (GPU-b), compute capability 6.1, 1.0 GiB; not used, because its capability is below 7",
    ]


def test_slices_among_others_are_said_once(caplog):
    """A process can see one of them only."""
    slices = [gpu(0, "MIG-a")._replace(is_slice=True), gpu(1, "GPU-b")]
    with caplog.at_level(logging.INFO):
        machine = MachineGpus(SETTINGS, lambda: slices)
        machine.read()
        machine.read()
    assert [each.getMessage() for each in caplog.records][2:] == [
        "a process sees one slice of a GPU at most, so the process of an instance sees its own GPU only"
    ]


def test_none():
    """A machine without GPUs is searched once."""
    machine = MachineGpus(SETTINGS, iter([()]).__next__)
    assert machine.read() == machine.read() == AvailableGpus((), 7.0, {1: 0.5})
