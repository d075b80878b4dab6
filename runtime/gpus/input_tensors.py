# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the inputs of a Python model may lie, by its parameter FORCE_CPU_ONLY_INPUT_TENSORS. (pure)

With `yes`, the default, all of them are in main memory. With `no` those stay on the GPU that come from a model on the
same one, or lie in memory of a client there.
"""

from __future__ import annotations

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.utils.errors import Code, LoadError

PARAMETER = "FORCE_CPU_ONLY_INPUT_TENSORS"


def check_input_tensors(spec: ModelSpec) -> None:
    """Raise LoadError, with Triton's words, for any other value."""
    value = spec.parameters.get(PARAMETER, "yes")
    if value not in ("yes", "no"):
        raise LoadError(f"Incorrect value for {PARAMETER}: {value}'", Code.UNSUPPORTED)


def reads_gpu(spec: ModelSpec) -> bool:
    """Whether the model takes inputs that lie on its GPU."""
    return spec.parameters.get(PARAMETER) == "no"
