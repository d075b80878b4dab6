# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds outputs that contradict the configuration. (pure)

The server sends them as they are, like Triton, so they are no errors; but clients rely on the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.requests.types import OutputTensor


class ContradictionWarning(UserWarning):
    """A model's output has another datatype or shape than its configuration says. The server would send it."""


def contradictions(spec: ModelSpec, outputs: Iterable[OutputTensor]) -> list[str]:
    """A sentence for each output whose datatype or shape, as a client gets it, is not that of the configuration."""
    found = []
    for output in outputs:
        declared = spec.outputs.get(output.name)
        if declared is None:  # an error, which the response has already
            continue
        subject = f"output '{output.name}' of model '{spec.name}' has"
        if output.datatype != declared.datatype:
            found.append(f"{subject} datatype {output.datatype}, and the configuration says {declared.datatype}")
        if not _fits(output.shape, declared.shape):
            found.append(f"{subject} shape {output.shape}, and the configuration says {list(declared.shape)}")
    return found


def _fits(shape: list[int], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared, strict=True)
    )
