# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Regions of shared memory for tests of one process."""

import pytest

from pyruntime.runtime.regions import create_region


@pytest.fixture
def new_region():
    """`new_region(size=0)`: a region that has so many bytes of memory. They are closed at the end of the test."""
    made = []

    def make(size=0):
        made.append(create_region("a test"))
        if size:
            made[-1].commit(0, size)
        return made[-1]

    yield make
    for region in made:
        if not region.is_closed:
            region.close()
