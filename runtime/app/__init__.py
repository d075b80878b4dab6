# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One server: its state, what it offers to its models, and its start and end."""
