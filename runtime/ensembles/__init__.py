# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles: a pure policy decides which step is due, and a thin shell calls the models of the steps."""
