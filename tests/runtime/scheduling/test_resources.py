# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How much there is of each resource, and which instances could never execute."""

import pytest

from pyruntime.runtime.scheduling.resources import Resource, Resources
from pyruntime.runtime.settings import ResourceLimit
from pyruntime.utils.errors import Code, LoadError

R, S, R_ON_1 = Resource("R", 0), Resource("S", None), Resource("R", 1)


class TestMaxima:
    def test_follow_the_instances(self):
        """Without limits there is as much as the instance that needs the most, while it is there."""
        made = Resources(())
        made.add("a", {R: 2})
        made.add("b", {R: 5, S: 1})
        assert (made.limit(R), made.limit(S)) == (5, 1)
        made.remove("b")
        assert (made.limit(R), made.limit(S)) == (2, 0)
        made.remove("a")
        assert made.limit(R) == 0

    def test_of_each_device(self):
        """Each device has its own."""
        made = Resources(())
        made.add("a", {R: 2})
        made.add("b", {R_ON_1: 7})
        assert (made.limit(R), made.limit(R_ON_1)) == (2, 7)

    def test_global_and_not(self):
        """A resource cannot be both global and of devices, while there are instances that need it."""
        made = Resources(())
        made.add("a", {R: 1})
        with pytest.raises(LoadError) as caught:
            made.add("b", {Resource("R", None): 1})
        assert str(caught.value) == (
            'Resource "R" is present as both global and device-specific resource in the model configuration.'
        )
        assert caught.value.code is Code.INVALID_ARG
        made.remove("a")
        made.add("b", {Resource("R", None): 1})
        with pytest.raises(LoadError, match="both global"):
            made.add("a", {R: 1})


class TestLimits:
    def test_too_small(self):
        """An instance that needs more than there is could never execute, and changes nothing."""
        made = Resources([ResourceLimit("R", 3)])
        with pytest.raises(LoadError) as caught:
            made.add("a", {R: 4})
        assert str(caught.value) == (
            'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 4"
        )
        assert caught.value.code is Code.INVALID_ARG
        made.add("b", {R: 3})
        assert made.limit(R) == 3

    def test_not_listed(self):
        """If any resource is listed, there is nothing of those that are not."""
        with pytest.raises(LoadError, match='"S" is limited to 0'):
            Resources([ResourceLimit("R", 3)]).add("a", {S: 1})

    def test_of_devices(self):
        """The larger of the value for the device and the value for each device counts."""
        made = Resources([ResourceLimit("R", 3), ResourceLimit("R", 5, 1), ResourceLimit("R", 1, 2)])
        assert [made.limit(Resource("R", device)) for device in (0, 1, 2)] == [3, 5, 3]

    def test_of_a_global_one(self):
        """For a global resource the largest value counts, whatever its device."""
        made = Resources([ResourceLimit("S", 3), ResourceLimit("S", 5, 1)])
        assert made.limit(S) == 5
