# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The child process that runs a model.py. Started by the host; imports nothing of the host's."""
