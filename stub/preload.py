# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Preloads the stub's code in the forkserver, and freezes it, so that forked stubs share its pages.

Without gc.freeze the first garbage collection in each stub would write to every object, and so copy every page.
"""

import gc

from pyruntime.stub import main  # noqa: F401

gc.collect()
gc.freeze()
