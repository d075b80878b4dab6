// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "objects.h"

namespace pyruntime {

// The attributes of responses and of outputs.
enum Attribute { kName, kDatatype, kShape, kData, kPlace, kId, kModelName, kModelVersion, kOutputs, kParameters, kCount };
constexpr const char* kAttributes[kCount] = {"name", "datatype",   "shape",         "data",    "place",
                                             "id",   "model_name", "model_version", "outputs", "parameters"};

// The names of the attributes.
struct State {
  PyObject* names[kCount];
};

inline State& StateOf(PyObject* module) { return *static_cast<State*>(PyModule_GetState(module)); }

inline Ref Get(const State& state, PyObject* object, Attribute attribute) {
  return Ref(PyObject_GetAttr(object, state.names[attribute]));
}

// The functions of the module that write responses, as Python calls them.
PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count);
PyObject* WriteMessage(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace pyruntime
