# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The path by which its author knows a file of a model.

`pyruntime serve model.py` makes a repository of links in a temporary folder, of which nobody wants to read. Links to
folders are followed, and those to files are not: mounted configurations have links to files whose names mean nothing.
"""

from __future__ import annotations

import os
from functools import lru_cache


def authors_path(path: str) -> str:
    """`path` without links to folders. What is no path of a file, as `<string>`, stays."""
    folder, name = os.path.split(path)
    return os.path.join(_resolved(folder), name) if folder else path


# The folders of a model and of the libraries that it logs from.
@lru_cache(maxsize=1024)
def _resolved(folder: str) -> str:
    return os.path.realpath(folder)
