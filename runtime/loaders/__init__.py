# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the versions of models: one loader for each kind of backend, behind one interface."""
