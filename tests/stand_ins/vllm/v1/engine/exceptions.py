# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from vllm.exceptions import VLLMServerError


class EngineDeadError(VLLMServerError):
    def __init__(self):
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")
