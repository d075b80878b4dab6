# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of GPUs in a process, whose model may set CUDA_VISIBLE_DEVICES."""

import logging

import pytest

from pyruntime.stub import gpus
from pyruntime.stub.gpus import check_own_gpu, ordinal_of
from pyruntime.stub.logs import LOGGER
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.driver import GpuError
from pyruntime.utils.gpu.visible import VISIBLE

ALL = {"gpu": "1", "gpu_uuid": "GPU-2", "visible_gpus": "all"}
OWN = {**ALL, "visible_gpus": "own"}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(gpus, "_ordinals", {})
    monkeypatch.setattr(gpus, "_looked_up_with", None)
    monkeypatch.setattr(gpus, "known", set())


def test_a_number_follows_what_the_model_sets_before_it_uses_a_gpu(machine, monkeypatch):
    """The GPU of the number 1 is number 0 for a model that has restricted itself to it."""
    assert ordinal_of("GPU-2") == 1
    monkeypatch.setenv(VISIBLE, "1")
    assert ordinal_of("GPU-2") == 0
    with pytest.raises(GpuError, match="this process does not see GPU GPU-1"):
        ordinal_of("GPU-1")
    assert gpus.known == {0, 1}


def test_what_a_model_sets_later_has_no_effect(machine, monkeypatch):
    """CUDA reads the variable once."""
    machine.gpu(0)
    monkeypatch.setenv(VISIBLE, "1")
    assert (ordinal_of("GPU-1"), ordinal_of("GPU-2")) == (0, 1)


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize("value", ["GPU-2", "1", "0,1", "", "-1", "none", None])
def test_a_model_that_sees_its_gpu_or_none_is_accepted(machine, monkeypatch, caplog, value):
    """One that hides all GPUs from itself computes on the CPU."""
    if value is not None:
        monkeypatch.setenv(VISIBLE, value)
    with caplog.at_level(logging.WARNING, LOGGER.name):
        check_own_gpu("GPU-2", OWN)
        check_own_gpu(None, ALL)
    assert not caplog.records


@pytest.mark.parametrize("value", ["0", "GPU-1", "7"])
def test_a_model_that_has_hidden_its_gpu_is_refused_where_the_server_had_chosen_it(machine, monkeypatch, value):
    """Its tensors would be on the GPU of others."""
    monkeypatch.setenv(VISIBLE, value)
    reason = f"the model has set CUDA_VISIBLE_DEVICES to '{value}', and its process does not see GPU 1 \\(GPU-2\\)"
    with pytest.raises(LoadError, match=reason):
        check_own_gpu("GPU-2", OWN)
    check_own_gpu(value, OWN)  # the server itself had set it


@pytest.mark.usefixtures("_captured")
def test_a_model_that_has_hidden_its_gpu_is_warned_where_triton_runs_it(machine, monkeypatch, caplog):
    """The numbers that it has are those of a server that sees other GPUs."""
    monkeypatch.setenv(VISIBLE, "0")
    with caplog.at_level(logging.WARNING, LOGGER.name):
        check_own_gpu("1,0", {**ALL, "gpu": "0"})
    (record,) = caplog.records
    assert "the server's CUDA_VISIBLE_DEVICES is 1,0" in record.getMessage()
