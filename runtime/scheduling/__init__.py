# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which request runs when: a pure policy for each scheduler, and one thin shell that drives them."""
