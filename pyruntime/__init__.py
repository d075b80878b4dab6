# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Serves models written for NVIDIA Triton: `pyruntime serve`, and `pyruntime.testing` for unit tests of models.

The subpackages lie in folders beside this one: see package_dir in setup.cfg.
"""

# setup.cfg reads it here. importlib.metadata takes as long to import as the whole HTTP frontend.
__version__ = "0.1.0"
