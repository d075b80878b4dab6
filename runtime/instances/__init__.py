# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model instances: the stub processes that run Python models, and what happens when one dies."""
