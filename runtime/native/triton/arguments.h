// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What functions of the C interface do with their arguments: checks of what backends hand over, and plain answers.

#pragma once

#include "error.h"

// Makes the function of the C interface in which it stands return an error where a pointer is null.
#define PYRUNTIME_REQUIRE(argument)                                                            \
  do {                                                                                         \
    if ((argument) == nullptr) return ::pyruntime::InvalidArgument(__func__, #argument " is null"); \
  } while (false)

// Makes the function of the C interface in which it stands answer, in `*out`, with something that `object` has.
#define PYRUNTIME_GET(object, out, value) \
  do {                                    \
    PYRUNTIME_REQUIRE(object);            \
    PYRUNTIME_REQUIRE(out);               \
    *(out) = (value);                     \
    return nullptr;                       \
  } while (false)
