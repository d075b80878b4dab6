# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The host process: finds models, schedules requests, speaks Triton's protocols. It never imports `pyruntime.stub`."""
