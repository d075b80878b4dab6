# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The names of arguments and results of an exported JAX function."""

import pytest

from pyruntime.backends.jax.naming import input_names, output_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([(0, 0), (0, 1)], ["INPUT__0", "INPUT__1"]),
        ([(0, 0, "a"), (0, 0, "b", "c"), (1, "d")], ["a", "b.c", "d"]),
        ([(0, 0), (0, 1, "a"), (0, 2, 0)], ["INPUT__0", "a", "INPUT__2"]),
        ([(0, 0, "a"), (0, 1, "a")], ["INPUT__0", "INPUT__1"]),
        ([], []),
    ],
)
def test_inputs(paths, names):
    """Keys of dicts are names, and other arguments have their place; no two have the same name."""
    assert input_names(paths) == names


def test_outputs():
    """A result alone, in a tuple, or in a dict, where a list has no names."""
    assert output_names([()]) == ["OUTPUT__0"]
    assert output_names([(0,), (1,)]) == ["OUTPUT__0", "OUTPUT__1"]
    assert output_names([("sum",), ("parts", 0)]) == ["sum", "OUTPUT__1"]
