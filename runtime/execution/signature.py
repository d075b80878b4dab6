# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes the signature of a request; only requests with equal signatures may share a batch. (pure)

A model may concatenate the requests of a batch. So they have equal shapes for every input (except the batch dimension,
and inputs that allow ragged batches), and lack the same optional inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from pyruntime.runtime.config.spec import ModelSpec


def signature_of(spec: ModelSpec, inputs: Iterable[tuple[str, list[int]]]) -> Hashable:
    """The signature of a validated request with these inputs, names and shapes.

    None if the model executes every request alone.
    """
    if not spec.is_batched:
        return None
    # Sorted, because clients may send inputs in any order. Names are unique, so sorting never compares shapes.
    return tuple(
        sorted((name, None if spec.inputs[name].allow_ragged_batch else tuple(shape[1:])) for name, shape in inputs)
    )
