# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""signature_of: what two requests must have in common to share a batch."""

from dataclasses import replace

import pytest

from pyruntime.runtime.config.spec import DynamicBatchingSpec, TensorSpec
from pyruntime.runtime.execution.signature import signature_of

from ..model_specs import BARE_SPEC


def model(batching=True):
    inputs = {
        "A": TensorSpec("A", "FP32", (-1,), (-1, -1)),
        "B": TensorSpec("B", "FP32", (-1,), (-1, -1), optional=True),
        "RAGGED": TensorSpec("RAGGED", "FP32", (-1,), (-1, -1), optional=True, allow_ragged_batch=True),
    }
    return replace(
        BARE_SPEC,
        max_batch_size=8,
        inputs=inputs,
        required_inputs=frozenset({"A"}),
        dynamic_batching=DynamicBatchingSpec() if batching else None,
    )


def signature(batching=True, **shapes):
    return signature_of(model(batching), ((name, list(shape)) for name, shape in shapes.items()))


SAME = [
    ({"A": (1, 4)}, {"A": (3, 4)}, "the batch dimension does not count"),
    ({"A": (1, 4), "B": (1, 2)}, {"B": (1, 2), "A": (1, 4)}, "the order of inputs does not count"),
    ({"A": (1, 4), "RAGGED": (1, 2)}, {"A": (1, 4), "RAGGED": (1, 9)}, "ragged inputs may differ in shape"),
]
DIFFERENT = [
    ({"A": (1, 4)}, {"A": (1, 5)}, "another shape"),
    ({"A": (1, 4)}, {"A": (1, 4), "B": (1, 2)}, "an optional input is missing"),
    ({"A": (1, 4)}, {"A": (1, 4), "RAGGED": (1, 2)}, "an optional ragged input is missing"),
    ({"A": (1, 2), "B": (1, 4)}, {"A": (1, 4), "B": (1, 2)}, "shapes belong to names"),
]


@pytest.mark.parametrize(("one", "other", "why"), SAME)
def test_same(one, other, why):
    """Requests that may share a batch have equal signatures, which can be hashed."""
    assert signature(**one) == signature(**other), why
    assert hash(signature(**one)) == hash(signature(**other))


@pytest.mark.parametrize(("one", "other", "why"), DIFFERENT)
def test_different(one, other, why):
    """Requests that may not share a batch have different signatures."""
    assert signature(**one) != signature(**other), why


def test_none_without_batching():
    """Where nothing is ever compared, nothing is worked out."""
    assert signature(batching=False, A=(1, 4)) is None
