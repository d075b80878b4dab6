# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that are clients of a server, of ours or of any other that speaks Triton's HTTP."""
