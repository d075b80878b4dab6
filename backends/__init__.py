# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Python-based backends that come with pyruntime: <name>/model.py."""
