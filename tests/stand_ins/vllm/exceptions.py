# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from http import HTTPStatus


class VLLMError(Exception):
    pass


class VLLMClientError(VLLMError):
    pass


class VLLMServerError(VLLMError):
    pass


class VLLMValidationError(VLLMClientError):
    def __init__(self, message, *, parameter=None, value=None):
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self):
        return f"{super().__str__()} (parameter={self.parameter}, value={self.value})"


class GracefulHTTPError(VLLMError):
    def __init__(self, message, http_status):
        super().__init__(message)
        self.message = message
        self.http_status = http_status


class QueueOverflowError(GracefulHTTPError):
    def __init__(self):
        super().__init__("The engine is currently busy and cannot accept new requests.", HTTPStatus.SERVICE_UNAVAILABLE)
