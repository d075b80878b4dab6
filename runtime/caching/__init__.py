# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The response cache: requests that were answered before are answered from a library, and not executed again."""
