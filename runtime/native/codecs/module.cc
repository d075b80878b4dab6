// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The module pyruntime.runtime.native._codecs, which _codecs.pyi describes. Only this file, *_reader.cc,
// http_answer.cc and written_responses.cc know Python.

#include "call_reader.h"
#include "head_reader.h"
#include "http_answer.h"
#include "infer_reader.h"
#include "objects.h"
#include "output_reader.h"
#include "written_responses.h"

namespace pyruntime {
namespace {

bool AddType(PyObject* module, const char* name, PyType_Spec* spec) {
  const Ref type(PyType_FromModuleAndSpec(module, spec, nullptr));
  return type && PyModule_AddObjectRef(module, name, type.get()) == 0;
}

int Execute(PyObject* module) {
  State& state = StateOf(module);
  for (size_t number = 0; number < kCount; ++number) {
    state.names[number] = PyUnicode_InternFromString(kAttributes[number]);
    if (state.names[number] == nullptr) return -1;
  }
  const bool is_complete = AddType(module, "InferReader", &reader_spec) &&
                           AddType(module, "PlainHeadReader", &head_reader_spec) &&
                           AddType(module, "OutputReader", &output_reader_spec);
  return is_complete ? 0 : -1;
}

PyMethodDef functions[] = {
    {"read_call", ReadCall, METH_O, nullptr},
    {"read_target", ReadTarget, METH_O, nullptr},
    {"write_answer", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(WriteAnswer)), METH_FASTCALL, nullptr},
    {"write_document", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(WriteDocument)), METH_FASTCALL,
     nullptr},
    {"write_message", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(WriteMessage)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(Execute)}, {0, nullptr}};

void Free(void* module) {
  for (PyObject* name : StateOf(static_cast<PyObject*>(module)).names) Py_XDECREF(name);
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_codecs", nullptr, sizeof(State), functions, slots, nullptr, nullptr,
                          Free};

}  // namespace
}  // namespace pyruntime

PyMODINIT_FUNC PyInit__codecs() { return PyModuleDef_Init(&pyruntime::definition); }
