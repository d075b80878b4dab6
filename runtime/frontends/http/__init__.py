# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 frontend: KServe, generate, the metrics port, the page."""
