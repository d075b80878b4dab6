# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests may share a batch: those of equal signature. (pure)

A batch is one stretch of rows for the model's author, so all its requests have the same shape on every input (but for
the batch dimension, and except for inputs that allow ragged batches) and leave out the same optional inputs.
"""

from __future__ import annotations

from collections.abc import Hashable

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.requests.types import InferRequest


def signature_of(spec: ModelSpec, request: InferRequest) -> Hashable:
    """What requests in one batch have in common. The request has been validated: every input is one of the model's.

    None where the model executes every request alone: nothing is ever compared.
    """
    if not spec.is_batched:
        return None
    # Sorted, since every client may order its inputs as it likes; names are unique, so shapes are never compared.
    return tuple(
        sorted(
            (tensor.name, None if spec.inputs[tensor.name].allow_ragged_batch else tuple(tensor.shape[1:]))
            for tensor in request.inputs
        )
    )
