# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of whole servers look at."""

import os
from pathlib import Path
from uuid import uuid4

from .harness.processes import named_shared_memory


def test_named_shared_memory():
    """Files that a process could leave behind, without those that CUDA has for events between processes."""
    paths = [Path(f"/dev/shm/{prefix}{uuid4().hex}") for prefix in ("pyruntime_test_", "cuda.shm.0.")]
    files = [path.open("w") for path in paths]
    try:
        assert named_shared_memory(os.getpid()) == [str(paths[0])]
    finally:
        for file, path in zip(files, paths, strict=True):
            file.close()
            path.unlink()
    assert named_shared_memory(os.getpid()) == []
