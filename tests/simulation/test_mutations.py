# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The simulator finds planted bugs."""

import pytest

from .mutations import MUTATIONS
from .run import problems

# The simulator has so many scenarios to find each of them.
SCENARIOS = 400


@pytest.mark.parametrize("name", MUTATIONS)
def test_found(name):
    """A planted bug breaks an invariant in one of the first scenarios."""
    with MUTATIONS[name]():
        assert next(problems(range(SCENARIOS)), None) is not None
