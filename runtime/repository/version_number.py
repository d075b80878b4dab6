# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of models in the words of clients. (pure)"""

from __future__ import annotations

from pyruntime.runtime.repository.lifecycle import LATEST
from pyruntime.utils.errors import Code, InferenceError

# Triton keeps versions in signed 64-bit integers, which have at most 19 digits.
VERSION_MAX = 2**63 - 1
VERSION_DIGITS_MAX = 19


def parse_version(text: str) -> int:
    """The version that `text` names, LATEST for "". Raises InferenceError (INVALID_ARG)."""
    if not text:
        return LATEST
    version = int(text) if text.isascii() and text.isdigit() and len(text) <= VERSION_DIGITS_MAX else 0
    if not 0 < version <= VERSION_MAX:
        raise InferenceError(
            f"failed to get model version from specified version string '{text[:VERSION_DIGITS_MAX]}', "
            "version should be an integral value > 0",
            Code.INVALID_ARG,
        )
    return version
