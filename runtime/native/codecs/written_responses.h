// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace pyruntime {

// The names of the attributes of an output.
struct State {
  PyObject* name;
  PyObject* datatype;
  PyObject* shape;
  PyObject* data;
};

inline State& StateOf(PyObject* module) { return *static_cast<State*>(PyModule_GetState(module)); }

// The functions of the module that write responses, as Python calls them.
PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace pyruntime
