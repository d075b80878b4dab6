# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the forkserver imports last: everything a stub needs, frozen so that forked stubs share its pages.

Without the freeze the first garbage collection in each stub would write to every object, and so copy every page.
"""

import gc

from pyruntime.stub import main  # noqa: F401

gc.collect()
gc.freeze()
