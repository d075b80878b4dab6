// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The functions read_call and read_target of the module, as Python calls them.
PyObject* ReadCall(PyObject* module, PyObject* packed);
PyObject* ReadTarget(PyObject* module, PyObject* message);

}  // namespace pyruntime
