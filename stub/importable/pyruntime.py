# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime`, for a model under a Python that does not have it, and for processes that such a model starts.

This folder is the last entry of sys.path in each stub. A start method of `multiprocessing` other than fork hands that
path on, so that a child finds what model.py imports. An installation comes before it on the path.
"""

import importlib
import os

__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]


def torch_allocator(byte_size: int) -> object:
    """All that a model finds in this package."""
    allocator = importlib.import_module("pyruntime.stub.torch_allocator").torch_allocator(byte_size)  # type: object
    return allocator
