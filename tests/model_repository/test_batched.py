# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of one batch are computed together."""

import numpy as np
import pytest


def test_rows_of_a_batch(load_model):
    """Each request gets the softmax of its own rows, and the number of rows in the batch."""
    rows = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    expected = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    results = load_model("model_repository/batched").execute(
        [{"INPUT": rows[:1]}, {"INPUT": rows[1:3]}, {"INPUT": rows[3:]}]
    )
    np.testing.assert_allclose(np.concatenate([result["OUTPUT"] for result in results]), expected, rtol=1e-5)
    assert [result["BATCH_SIZE"].tolist() for result in results] == [[[4]], [[4], [4]], [[4]]]


def test_more_than_the_server_would(load_model):
    """A batch has eight rows at most."""
    with pytest.raises(ValueError, match="at most 8 at a time, its max_batch_size"):
        load_model("model_repository/batched").execute([{"INPUT": np.zeros((5, 4), np.float32)}] * 2)
