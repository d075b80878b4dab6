# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model instances: stub processes, and threads of C++ backends in the server."""
