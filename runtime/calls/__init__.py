# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls from one model to another: from stubs, from native code in the server, and from the server itself."""
