# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The host's side of shared memory: a request region per model version, and the regions of clients."""
