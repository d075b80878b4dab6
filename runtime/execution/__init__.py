# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and the contract of their executors, which schedulers, instances and calls between models share. (pure)"""
