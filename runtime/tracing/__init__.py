# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of requests: which are taken, what is noted in them, and where they go."""
