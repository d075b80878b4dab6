# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP headers and gRPC metadata that become parameters of inference requests. (pure)

Operators select them by a pattern: see header_pattern.py.
"""

from __future__ import annotations

from pyruntime.runtime.header_pattern import Forwarded
from pyruntime.runtime.requests.types import Parameter
from pyruntime.utils.errors import Code, InferenceError

# Parameters with a meaning of their own.
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
RESERVED_PREFIX = "triton_"


def forward(parameters: dict[str, Parameter], forwarded: Forwarded) -> None:
    """Add headers to the parameters of a request; a header replaces a parameter with the same name.

    Raises InferenceError (INVALID_ARG) for a reserved name.
    """
    for name, value in forwarded:
        small = name.lower()
        if small in RESERVED or small.startswith(RESERVED_PREFIX):
            message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
            raise InferenceError(message, Code.INVALID_ARG)
        parameters[name] = value
