# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extensions `_http2` in C (src/), `_codecs` and `_triton` in C++ (codecs/, triton/), and libraries of backends.

The .pyi file beside each extension has its types.
"""
