// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Common code of functions of the C interface: checks of arguments from backends, and simple results.

#pragma once

#include "error.h"

// Makes the surrounding function of the C interface return an error if a pointer is null.
#define PYRUNTIME_REQUIRE(argument)                                                            \
  do {                                                                                         \
    if ((argument) == nullptr) return ::pyruntime::InvalidArgument(__func__, #argument " is null"); \
  } while (false)

// Makes the surrounding function of the C interface return a property of `object` in `*out`.
#define PYRUNTIME_GET(object, out, value) \
  do {                                    \
    PYRUNTIME_REQUIRE(object);            \
    PYRUNTIME_REQUIRE(out);               \
    *(out) = (value);                     \
    return nullptr;                       \
  } while (false)
