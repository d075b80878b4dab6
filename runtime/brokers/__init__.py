# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs as the host uses them: through brokers, processes of their own, so that the host has no context on any GPU."""
