# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""From the text of a config.pbtxt to a validated, normalised model configuration."""
