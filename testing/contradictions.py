# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds outputs that contradict the configuration, as the server does for its log. (pure)

They are no errors, as in Triton: the server sends them as they are, or drops what the configuration does not declare.
But clients rely on the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.instances.output_findings import undeclared, wrong_datatype, wrong_shape
from pyruntime.runtime.requests.types import OutputTensor


class ContradictionWarning(UserWarning):
    """A model's output has another datatype or shape than its configuration says, or is not declared there."""


def contradictions(spec: ModelSpec, outputs: Iterable[OutputTensor], dropped: Iterable[str]) -> list[str]:
    """A sentence for each output whose datatype or shape, as a client gets it, is not that of the configuration.

    `dropped` are the names of outputs that the configuration does not declare.
    """
    found = [undeclared(spec, name) for name in dropped]
    for output in outputs:
        declared = spec.outputs[output.name]
        found += filter(None, (wrong_datatype(spec, output, declared), wrong_shape(spec, output, declared)))
    return found
