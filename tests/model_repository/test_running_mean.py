# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server keeps the states; in a test they are inputs and outputs."""

import numpy as np


def test_states(load_model):
    """A request has the states that the one before it returned, and the first one has zeros."""
    model = load_model("model_repository/running_mean")
    values = np.array([[4.0]], np.float32)
    first = model.infer({"VALUE": values}, correlation_id=1, sequence_start=True)
    assert first["MEAN"].tolist() == [[4.0]]
    states = {"SUM": first["NEW_SUM"], "COUNT": first["NEW_COUNT"]}
    second = model.infer({"VALUE": values / 2, **states}, correlation_id=1)
    assert second["MEAN"].tolist() == [[3.0]]
    assert (second["NEW_SUM"].tolist(), second["NEW_COUNT"].tolist()) == ([[6.0]], [[2]])
