# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model repositories: what is on disk, what is served of it, and in which state each version is."""
