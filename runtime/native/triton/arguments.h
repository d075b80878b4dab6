// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks of what backends hand to functions of the C interface.

#pragma once

#include "error.h"

// Makes the function of the C interface in which it stands return an error where a pointer is null.
#define PYRUNTIME_REQUIRE(argument)                                                            \
  do {                                                                                         \
    if ((argument) == nullptr) return ::pyruntime::InvalidArgument(__func__, #argument " is null"); \
  } while (false)
