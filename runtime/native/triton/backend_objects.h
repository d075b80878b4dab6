// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Common parts of the Python types Backend, Model and Instance: each is a handle of an object of the C interface.

#pragma once

#include <Python.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend.h"
#include "lent_connection.h"
#include "plain_requests.h"
#include "python.h"

namespace pyruntime {

struct BackendObject {
  PyObject_HEAD
  std::shared_ptr<TRITONBACKEND_Backend> backend;
};

struct ModelObject {
  PyObject_HEAD
  std::shared_ptr<TRITONBACKEND_Model> model;
};

struct PlainRequestsObject {
  PyObject_HEAD
  std::shared_ptr<PlainRequests> plain;
};

struct LentConnectionObject {
  PyObject_HEAD
  std::shared_ptr<LentConnection> lent;
  PyObject* instance;  // keeps the Python object, because the instance must outlive the lending
};

struct ClientSocketObject {
  PyObject_HEAD
  std::shared_ptr<ClientSocket> client;
};

// A _triton.LentConnection; null with a Python exception set.
PyObject* NewLentConnection(std::shared_ptr<LentConnection> lent, PyObject* instance);

// Each adds its type to the module; false with a Python exception set. To be called in this order.
bool AddBackendType(PyObject* module);
bool AddModelType(PyObject* module);
bool AddPlainRequestsType(PyObject* module);
bool AddClientSocketType(PyObject* module);
bool AddLentConnectionType(PyObject* module);
bool AddOutputRegionType(PyObject* module);
bool AddInstanceType(PyObject* module);

// Reads a path in the file system's encoding; false with a Python exception set.
bool PathFromPython(PyObject* object, std::string* path);

// Reads a sequence of names; false with a Python exception set.
bool NamesFromPython(PyObject* sequence, std::vector<std::string>* names);

// [(memory type, its id, bytes)]; null with a Python exception set.
PyObject* ToPython(const std::vector<TRITONSERVER_BufferAttributes>& usage);

// Calls into a backend without the GIL, and returns its failure.
template <typename Call>
std::optional<Failure> WithoutGil(Call&& call) {
  PyThreadState* thread = PyEval_SaveThread();
  std::optional<Failure> failure;
  try {
    failure = call();
  } catch (const std::exception& exc) {  // no thread, or no memory, for it
    failure = Failure{TRITONSERVER_ERROR_INTERNAL, exc.what()};
  }
  PyEval_RestoreThread(thread);
  return failure;
}

// None, or null with the failure raised as an exception.
inline PyObject* NoneOrRaise(const std::optional<Failure>& failure) {
  if (!failure) Py_RETURN_NONE;
  Raise(*failure);
  return nullptr;
}

}  // namespace pyruntime
