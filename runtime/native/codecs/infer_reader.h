// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The type InferReader.
extern PyType_Spec reader_spec;

}  // namespace pyruntime
