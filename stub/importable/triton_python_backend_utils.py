# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`triton_python_backend_utils`, for processes that a model starts: see pyruntime.py."""

import sys

from pyruntime.stub import pb_utils

sys.modules[__name__] = pb_utils
