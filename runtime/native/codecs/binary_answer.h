// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The function of the module that writes a whole response over HTTP, as Python calls it.
PyObject* WriteAnswer(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace pyruntime
