# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is written in C: see src/. Each extension is typed by the .pyi file beside it."""
