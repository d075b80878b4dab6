# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the stubs of a model are started with."""

import os

from pyruntime.runtime.environments.environment import Preloaded
from pyruntime.runtime.loaders.stub_pythons import PRELOADS, preloaded
from pyruntime.runtime.repository.backends import OUR_BACKENDS


def test_frameworks_of_our_backends():
    """They are imported once for all stubs; those of a user's backend of the same name are not ours to import."""
    for name, module in PRELOADS.items():
        assert os.path.isfile(os.path.join(OUR_BACKENDS, name, "model.py"))
        assert preloaded(os.path.join(OUR_BACKENDS, name)) == Preloaded(module)
        assert preloaded(f"/backends/{name}") is None
    assert preloaded(os.path.join(OUR_BACKENDS, "scale")) is None
    assert preloaded("") is None
