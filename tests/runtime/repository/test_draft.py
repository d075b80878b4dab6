# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.config.spec import InstanceSpec
from pyruntime.runtime.repository.draft import NAMES_MAX, check_debug_model, only_process, only_version
from pyruntime.runtime.repository.instance_mode import InstanceProcess
from pyruntime.runtime.settings import SettingsError


def instance(name, passive=False):
    return InstanceSpec(name=name, kind="CPU", device_id=0, passive=passive)


def test_model_that_there_is():
    """A model of the repositories can be debugged, and so can none at all."""
    check_debug_model("a", ["a", "b"])
    check_debug_model("", [])


@pytest.mark.parametrize(
    ("found", "listed"),
    [
        (["b", "a"], "a, b"),
        ([], "none"),
        ([f"{n:02}" for n in range(99)], ", ".join(f"{n:02}" for n in range(NAMES_MAX))),
    ],
)
def test_model_that_there_is_not(found, listed):
    """The error lists the existing models, unless there are too many."""
    with pytest.raises(SettingsError) as caught:
        check_debug_model("c", found)
    assert str(caught.value) == f"--debug: there is no model 'c' in the repositories; there are: {listed}"


def test_newest_version():
    """The newest version is debugged."""
    assert only_version((1, 2, 5)) == (5,)
    assert only_version(()) == ()


def test_first_process():
    """One process is left, which executes one batch at a time."""
    processes = (InstanceProcess(instance("a_0"), 4), InstanceProcess(instance("a_1"), 4))
    assert only_process(processes) == (InstanceProcess(instance("a_0")),)


def test_process_that_takes_requests():
    """An instance that gets no requests is debugged only if all are such."""
    passive, active = InstanceProcess(instance("a_0", True)), InstanceProcess(instance("a_1"))
    assert only_process((passive, active)) == (active,)
    assert only_process((passive, passive)) == (passive,)
