# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Schedules requests: pure policies decide when a request runs, and thin shells drive them."""
