# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A stub that serves over a connection without a process: see far_end.py."""

import pytest

from .far_end import Stub


@pytest.fixture
def requests(new_region):
    """The request region of its model."""
    return new_region()


@pytest.fixture
def stub(requests):
    """The stub."""
    made = Stub("m_0", requests)
    yield made
    made.close()
