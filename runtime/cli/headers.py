# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the headers are that backends in C and C++ are compiled with."""

from __future__ import annotations

from pathlib import Path


def headers_folder() -> Path:
    """The folder for a compiler's `-I`: beside this package, in a source tree as in an installation."""
    return Path(__file__).resolve().parents[2] / "include"
