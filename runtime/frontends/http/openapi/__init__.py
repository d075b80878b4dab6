# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server described to machines: an OpenAPI document, with a schema of its own for each model that is served."""
