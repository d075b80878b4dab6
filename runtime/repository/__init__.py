# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model repositories: the models on disk, the versions that are served, and the state of each version."""
