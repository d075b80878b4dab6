# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What host and stub share: the language they speak and the memory they speak about.

No policy and no asyncio in here, and nothing newer than Python 3.8: a stub may run under any CPython that has numpy.
"""
