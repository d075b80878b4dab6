// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
// Code in C++ that uses custom.h.
#include "custom.h"

CustomExecuteV2Fn_t execute = CustomExecuteV2;
