# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which instances share a process."""

import pytest

from pyruntime.runtime.repository.instance_mode import instance_processes
from pyruntime.utils.errors import LoadError

from ..model_specs import spec_from


def processes(text, gpus=()):
    spec = spec_from(text, gpus=gpus)
    return [(process.instance.name, process.concurrency) for process in instance_processes(spec)]


def parameter(mode):
    return f"parameters {{ key: 'INSTANCE_MODE' value: {{ string_value: '{mode}' }} }} "


@pytest.mark.parametrize("text", ["", parameter("process")])
def test_a_process_each(text):
    """Unless the model says otherwise every instance is a process."""
    assert processes(text + "instance_group [ { count: 2 }, {} ]") == [("m_0_0", 1), ("m_0_1", 1), ("m_1_0", 1)]


def test_a_process_for_a_group():
    """With threads a group is one process, which executes as much at a time as there are instances."""
    groups = "instance_group [ { count: 3 }, { name: 'one' }, { name: 'a_b' count: 2 } ]"
    assert processes(parameter("thread") + groups) == [("m_0_0", 3), ("one_0", 1), ("a_b_0", 2)]


def test_a_process_for_a_device():
    """Instances of a group that are on different devices are different processes."""
    assert processes(parameter("thread") + "instance_group { count: 2 }", gpus=(0, 3)) == [("m_0_0", 2), ("m_0_2", 2)]


@pytest.mark.parametrize("mode", ["", "threads", "Thread"])
def test_no_such_mode(mode):
    """Any other mode is refused, with those that there are."""
    sentence = f"^model 'm' has the parameter INSTANCE_MODE '{mode}', which must be 'process' or 'thread'$"
    with pytest.raises(LoadError, match=sentence):
        processes(parameter(mode))
