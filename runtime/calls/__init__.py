# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls from one model to another, whoever makes them: stubs, native code in the server, the server itself."""
