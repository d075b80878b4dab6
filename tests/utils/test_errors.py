# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The names and codes of errors."""

from pyruntime.utils.errors import Code, ConfigError, LoadError


def test_words():
    """Triton's names of the codes, as it writes them before messages."""
    assert [code.words for code in Code] == [
        "Unknown", "Internal", "Not found", "Invalid argument", "Unavailable", "Unsupported", "Already exists",
        "Cancelled", "Deadline exceeded",
    ]  # fmt: skip


def test_codes():
    """A LoadError has the code of its failure, INTERNAL by default; a wrong configuration is INVALID_ARG."""
    assert LoadError("no").code is Code.INTERNAL
    assert LoadError("no", Code.NOT_FOUND).code is Code.NOT_FOUND
    assert ConfigError("no").code is Code.INVALID_ARG
