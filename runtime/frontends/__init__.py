# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The protocols that clients speak: Triton's HTTP and gRPC APIs."""
