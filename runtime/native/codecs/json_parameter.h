// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Parameters of requests that only models know. The reference is frontends/common/request_parameters.py.

#pragma once

#include <string>

#include "scanner.h"

namespace pyruntime {

// Reads the value of a parameter, and adds it as orjson writes it. False for null, lists and objects, for integers
// beyond 64 bits with a sign, and doubles that are not written here.
bool ReadJsonParameter(Scanner* scanner, std::string* json);

}  // namespace pyruntime
