# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The host's side of shared memory: request regions, regions of clients, and copies between GPUs."""
