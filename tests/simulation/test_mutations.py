# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The simulator finds planted bugs."""

import pytest

from .mutations import MUTATIONS
from .run import problems

# The simulator has so many seeds to find each of them.
SEEDS = 2000


@pytest.mark.parametrize("name", MUTATIONS)
def test_found(name):
    """A planted bug breaks an invariant in one of the first scenarios."""
    mutation, needs, first = MUTATIONS[name]
    with mutation():
        assert next(problems(range(first, first + SEEDS), needs), None) is not None
