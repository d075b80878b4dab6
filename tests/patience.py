# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what comes at once: what takes longer never comes, and the test fails rather than hangs."""

PATIENCE_S = 60.0
