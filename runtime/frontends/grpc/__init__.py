# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""gRPC: connections, calls, and what each remote procedure does."""
