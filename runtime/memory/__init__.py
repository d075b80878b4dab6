# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Shared memory as the host sees it: one request region for each model version."""
