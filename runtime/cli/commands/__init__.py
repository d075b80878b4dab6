# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that are clients of a server, pyruntime's or any other with Triton's HTTP protocol."""
