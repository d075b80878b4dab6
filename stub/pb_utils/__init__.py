# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The module that a model.py imports as triton_python_backend_utils."""
