# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extensions `_http2` in C (src/) and `_triton` in C++ (triton/), and the loading of backends' libraries.

The .pyi file beside each extension has its types.
"""
