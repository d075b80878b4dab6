# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that instances may use, and the limits of their memory."""

import pytest

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.gpus.available import NO_GPUS, AvailableGpus
from pyruntime.utils.errors import Code, LoadError
from pyruntime.utils.gpu.driver import GpuProperties


def gpu(number, capability=(8, 0), total=100, free=100):
    return GpuProperties(number, f"GPU-{number}", "G", capability, total, free, False)


def test_least_capability():
    """GPUs that are too old keep their numbers, and are not used."""
    gpus = (gpu(0, (5, 2)), gpu(1, (6, 0)), gpu(2, (7, 5)))
    assert AvailableGpus(gpus).numbers == (1, 2)
    assert AvailableGpus(gpus, capability_min=7.5).numbers == (2,)
    assert AvailableGpus(gpus, capability_min=7.6).numbers == NO_GPUS.numbers == ()


def test_limits():
    """A GPU is over its limit when more than the fraction is in use; the limit of others is all of their memory."""
    gpus = AvailableGpus((gpu(0, free=50), gpu(1, free=49), gpu(2, free=0)), limits={0: 0.5, 1: 0.5})
    assert [gpus.is_over_limit(each) for each in gpus.all] == [False, True, False]
    gpus.check_limits([InstanceSpec("a_0", "GPU", 0), InstanceSpec("a_1", "GPU", 2), InstanceSpec("b_0", "CPU", 1)])
    with pytest.raises(LoadError) as caught:
        gpus.check_limits([InstanceSpec("a_0", "GPU", 0), InstanceSpec("a_1", "GPU", 1)])
    assert str(caught.value) == (
        "can not create model 'a_1': memory limit set for GPU 1 has exceeded, model loading is rejected."
    )
    assert caught.value.code is Code.UNAVAILABLE
