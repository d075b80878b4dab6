# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server's page for people who look at it with a browser: what models there are, and how they answer."""
