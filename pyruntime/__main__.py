# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m pyruntime`: the same as the `pyruntime` command."""

from __future__ import annotations

import sys

from pyruntime.runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
