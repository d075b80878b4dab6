# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns a model's EXECUTION_ENV_PATH into a Python interpreter that its stubs can start with.

`prepare.py` is the entry point. Unpacked and built environments are cached per user.
"""
