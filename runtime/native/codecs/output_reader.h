// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The type OutputReader.
extern PyType_Spec output_reader_spec;

}  // namespace pyruntime
