# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The code that host and stub share: their messages, and the memory that the messages refer to.

No policy and no asyncio in here, and nothing newer than Python 3.8: a stub may run under any CPython that has numpy.
"""
