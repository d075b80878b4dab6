// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.ClientSocket

#include <cerrno>
#include <new>
#include <system_error>

#include "backend_objects.h"
#include "client_socket.h"
#include "host.h"

namespace pyruntime {
namespace {

std::shared_ptr<ClientSocket>& ClientOf(PyObject* self) { return reinterpret_cast<ClientSocketObject*>(self)->client; }

PyObject* ClientNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"descriptor", nullptr};
  int descriptor = -1;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "i:ClientSocket", const_cast<char**>(parameters), &descriptor) == 0) {
    return nullptr;
  }
  std::shared_ptr<ClientSocket> client;
  try {
    client = std::make_shared<ClientSocket>(descriptor);
  } catch (const std::system_error& exc) {
    errno = exc.code().value();
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&ClientOf(self)) std::shared_ptr<ClientSocket>(std::move(client));
  return self;
}

void ClientDealloc(PyObject* self) {
  std::destroy_at(&ClientOf(self));
  FreeObject(self);
}

PyObject* ClientShutDown(PyObject* self, PyObject* /*unused*/) {
  ClientOf(self)->ShutDown();
  Py_RETURN_NONE;
}

PyMethodDef client_methods[] = {
    {"shut_down", Caught<ClientShutDown>, METH_NOARGS, "Send nothing any more: the connection is closed."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot client_slots[] = {
    {Py_tp_doc, const_cast<char*>("A connection that native threads may answer in.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<ClientNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(ClientDealloc)},
    {Py_tp_methods, client_methods},
    {0, nullptr},
};
PyType_Spec client_spec = {
    "pyruntime.runtime.native._triton.ClientSocket", sizeof(ClientSocketObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, client_slots};

}  // namespace

bool AddClientSocketType(PyObject* module) {
  Ref type(PyType_FromSpec(&client_spec));
  if (!type || PyModule_AddObjectRef(module, "ClientSocket", type.get()) < 0) return false;
  Host::Get().client_socket_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

}  // namespace pyruntime
