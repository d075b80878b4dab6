# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios: see --help, and docs/explanation/simulation.md."""

from .command import main

main()
