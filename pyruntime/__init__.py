# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Serves models written for NVIDIA Triton: `pyruntime serve`, and `pyruntime.testing` for unit tests of models.

The subpackages lie in folders beside this one: see package_dir in setup.cfg.
"""

from __future__ import annotations

# The version of the installation. It is looked up when it is needed, because every stub imports this package.
__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("pyruntime")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
