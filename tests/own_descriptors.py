# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The descriptors of the process that runs the tests."""

import gc
import os


def own_descriptors():
    """How many are open. What earlier tests have left as garbage is closed before, and cannot be between two counts."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
