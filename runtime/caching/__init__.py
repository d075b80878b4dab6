# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The response cache: a library stores responses, and equal requests are answered from it without execution."""
