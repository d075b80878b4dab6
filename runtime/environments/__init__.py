# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The Python that a model runs in: whatever EXECUTION_ENV_PATH names becomes an interpreter that a stub can start with.

`prepare.py` is the way in. What is unpacked or built is kept in the user's cache, so that it happens once.
"""
