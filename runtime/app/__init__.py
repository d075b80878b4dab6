# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The composition root: the state of one server, the services it gives its models, and its start and end."""
