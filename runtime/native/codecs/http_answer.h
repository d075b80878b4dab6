// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The functions write_answer and write_document of the module, as Python calls them.
PyObject* WriteAnswer(PyObject* module, PyObject* const* arguments, Py_ssize_t count);
PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace pyruntime
