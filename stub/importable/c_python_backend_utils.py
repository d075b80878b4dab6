# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`c_python_backend_utils`, for processes that a model starts: see pyruntime.py."""

import sys

from pyruntime.stub import c_pb_utils

sys.modules[__name__] = c_pb_utils
