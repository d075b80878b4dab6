# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The child process that runs a model.py. The host starts it; it imports no code of the host."""
