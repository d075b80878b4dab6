# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the process of an instance sees of the GPUs."""

import pytest

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.gpus.visibility import check_sight_of_server, sight_of
from pyruntime.utils.errors import LoadError
from pyruntime.utils.gpu.driver import GpuProperties

from ..model_specs import spec_from


def gpus(*uuids):
    return AvailableGpus(
        tuple(
            GpuProperties(number, uuid, "G", (8, 0), 100, 100, uuid.startswith("MIG"))
            for number, uuid in enumerate(uuids)
        )
    )


GPUS = gpus("GPU-a", "GPU-b", "MIG-c")
WHOLE = gpus("GPU-a", "GPU-b")


def sight(found, kind, number, mode=None, default="all"):
    parameter = f'parameters {{ key: "VISIBLE_GPUS" value: {{ string_value: "{mode}" }} }}' if mode else ""
    return sight_of(InstanceSpec("m_0", kind, number), spec_from(parameter), found, default)


@pytest.mark.parametrize(("mode", "default"), [(None, "all"), ("all", "all"), ("all", "own")])
def test_by_default_a_process_sees_what_the_server_sees(mode, default):
    """With the server's number."""
    assert sight(WHOLE, "GPU", 1, mode, default) == (
        {},
        1,
        {"gpu": "1", "gpu_uuid": "GPU-b", "visible_gpus": "all"},
    )


@pytest.mark.parametrize(("mode", "default"), [(None, "own"), ("own", "all"), ("own", "own")])
def test_own_gpu_by_the_model_or_by_the_server(mode, default):
    """By its UUID; it is number 0 there, because it is the only one."""
    assert sight(WHOLE, "GPU", 1, mode, default) == (
        {"CUDA_VISIBLE_DEVICES": "GPU-b"},
        0,
        {"gpu": "1", "gpu_uuid": "GPU-b", "visible_gpus": "own"},
    )


@pytest.mark.parametrize(("number", "uuid"), [(1, "GPU-b"), (2, "MIG-c")])
@pytest.mark.parametrize("default", ["own", "all"])
def test_where_one_gpu_is_a_slice_each_process_sees_its_own_only(number, uuid, default):
    """A process that sees a slice sees nothing else, so that a whole GPU must be named as well."""
    assert sight(GPUS, "GPU", number, default=default)[:2] == ({"CUDA_VISIBLE_DEVICES": uuid}, 0)


def test_the_only_slice_of_a_server_is_seen_as_it_is():
    """Its number is 0 anyway."""
    assert sight(gpus("MIG-c"), "GPU", 0)[:2] == ({}, 0)


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
@pytest.mark.parametrize("mode", [None, "all", "own"])
def test_no_gpu(kind, mode):
    """What is not on a GPU sees what the server sees."""
    assert sight(GPUS, kind, 0, mode) == ({}, 0, {})


@pytest.mark.parametrize(
    ("number", "mode", "problem"),
    [
        (0, "some", "model 'm' has the parameter VISIBLE_GPUS 'some', which must be 'all' or 'own'"),
        (2, "all", "a GPU of the server is a slice of one: a process sees one slice, and no GPU beside it"),
        (0, "all", "a GPU of the server is a slice of one: a process sees one slice, and no GPU beside it"),
    ],
)
def test_refusals(number, mode, problem):
    """What CUDA cannot do is refused when the model is loaded."""
    with pytest.raises(LoadError, match=problem):
        sight(GPUS, "GPU", number, mode)


def test_server():
    """The server's process sees whole GPUs, or the first slice."""
    check_sight_of_server("m", [InstanceSpec("m_0", "GPU", 0), InstanceSpec("m_1", "CPU", 2)], GPUS)
    check_sight_of_server("m", [InstanceSpec("m_0", "GPU", 0)], AvailableGpus(GPUS.all[2:]))
    with pytest.raises(LoadError, match="instance 'm_1' of model 'm' is on GPU 2, a slice of a GPU"):
        check_sight_of_server("m", [InstanceSpec("m_1", "GPU", 2)], GPUS)
