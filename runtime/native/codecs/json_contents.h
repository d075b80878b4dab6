// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The contents of tensors as JSON, both ways. The reference is frontends/http/json_tensors.py.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scanner.h"

namespace pyruntime {

// Adds the tensor bytes of a list of elements, however it nests, and says how many elements there are. False for those
// of another kind, out of range, and datatypes without a form in JSON.
bool ReadContents(std::string_view datatype, Scanner* scanner, std::string* contents, int64_t* count);

// The same for one element without a list.
bool ReadElement(std::string_view datatype, Scanner* scanner, std::string* contents);

// Adds the elements of an output of `count` elements, with commas between them and no brackets around them. False if
// its contents do not fill it, or it has no form in JSON, or some of its numbers are not finite, or large enough for a
// sum not to be.
bool AddContents(std::string_view datatype, std::string_view contents, int64_t count, std::string* json);

}  // namespace pyruntime
