// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "objects.h"

namespace pyruntime {

// The attributes of responses, of outputs, and of options for these.
enum Attribute {
  kName,
  kDatatype,
  kShape,
  kData,
  kPlace,
  kId,
  kModelName,
  kModelVersion,
  kOutputs,
  kParameters,
  kDefaultBinary,
  kBinary,
  kCount,
};
constexpr const char* kAttributes[kCount] = {
    "name",       "datatype",      "shape",   "data",       "place",          "id",
    "model_name", "model_version", "outputs", "parameters", "default_binary", "binary",
};

// The names of the attributes.
struct State {
  PyObject* names[kCount];
};

inline State& StateOf(PyObject* module) { return *static_cast<State*>(PyModule_GetState(module)); }

inline Ref Get(const State& state, PyObject* object, Attribute attribute) {
  return Ref(PyObject_GetAttr(object, state.names[attribute]));
}

// The function write_message of the module, as Python calls it.
PyObject* WriteMessage(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

}  // namespace pyruntime
