// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The module pyruntime.runtime.native._codecs, which _codecs.pyi describes. Only this file, infer_reader.cc and
// written_responses.cc know Python.

#include "http_head.h"
#include "infer_reader.h"
#include "objects.h"
#include "written_responses.h"

namespace pyruntime {
namespace {

PyObject* ReadHead(PyObject*, PyObject* argument) {
  const View view(argument);
  if (!view) return nullptr;
  HttpHead head;
  if (!ReadHttpHead(view.bytes(), &head)) Py_RETURN_NONE;
  return Tuple({Text(head.method), Bytes(head.target), PyLong_FromLongLong(head.content_length),
                PyLong_FromLongLong(head.document_length), Text(head.accept_encoding), Text(head.traceparent)});
}

int Execute(PyObject* module) {
  State& state = StateOf(module);
  state = {PyUnicode_InternFromString("name"), PyUnicode_InternFromString("datatype"),
           PyUnicode_InternFromString("shape"), PyUnicode_InternFromString("data")};
  if (state.name == nullptr || state.datatype == nullptr || state.shape == nullptr || state.data == nullptr) return -1;
  const Ref type(PyType_FromModuleAndSpec(module, &reader_spec, nullptr));
  return type ? PyModule_AddObjectRef(module, "InferReader", type.get()) : -1;
}

PyMethodDef functions[] = {
    {"read_head", ReadHead, METH_O, nullptr},
    {"write_document", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(WriteDocument)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(Execute)}, {0, nullptr}};

void Free(void* module) {
  State& state = StateOf(static_cast<PyObject*>(module));
  for (PyObject* each : {state.name, state.datatype, state.shape, state.data}) Py_XDECREF(each);
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_codecs", nullptr, sizeof(State), functions, slots, nullptr, nullptr,
                          Free};

}  // namespace
}  // namespace pyruntime

PyMODINIT_FUNC PyInit__codecs() { return PyModuleDef_Init(&pyruntime::definition); }
