# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Batches that are filled up to the size that a framework wants."""

import numpy as np
import pytest

from pyruntime.backends.toolkit.padding import next_power_of_two, padded_call


def test_a_batch_is_filled_up():
    """The framework sees more rows, which are like the last one; outputs have the rows of the inputs."""
    seen = []

    def call(inputs):
        seen.append(inputs["A"].tolist())
        return {"B": inputs["A"] * 2, "S": inputs["A"].sum(), "T": np.ones(3)}

    outputs = padded_call(call, {"A": np.array([[1], [2], [3]])}, lambda rows: rows + 1)
    assert seen == [[[1], [2], [3], [3]]]
    assert (outputs["B"].tolist(), outputs["S"], outputs["T"].tolist()) == ([[2], [4], [6]], 9, [1, 1, 1])


def test_a_batch_that_fits():
    """Nothing is copied."""
    array = np.ones((2, 1))
    assert padded_call(lambda inputs: inputs, {"A": array}, lambda rows: rows)["A"] is array


@pytest.mark.parametrize(("rows", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)])
def test_powers(rows, power):
    """A power of two stays."""
    assert next_power_of_two(rows) == power
