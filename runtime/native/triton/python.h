// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Python objects for C++: an owned reference, and conversions of values. All with the GIL.

#pragma once

#include <Python.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "buffer.h"
#include "error.h"
#include "values.h"

namespace pyruntime {

// Owns a reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// New references; null with a Python exception set if there is no memory. Text that is not UTF-8 is replaced.
PyObject* ToPython(const std::string& text);
PyObject* ToPython(const Shape& shape);                  // a list
PyObject* ToPython(const TRITONSERVER_Parameter& parameter);  // its value
PyObject* ToPython(const Failure& failure);              // (code, message)
PyObject* ToPython(Buffer buffer);                       // a _triton.Buffer that owns it

// The pool of a _triton.OutputRegion; null for any other object.
std::shared_ptr<BufferPool> OutputPoolOf(PyObject* object);

// A tuple that takes over these references; null, with the others released, if one of them is null.
template <size_t Count>
PyObject* Tuple(PyObject* (&&items)[Count]) {
  Ref tuple(PyTuple_New(Count));
  bool complete = static_cast<bool>(tuple);
  for (size_t index = 0; index < Count; ++index) {
    complete = complete && items[index] != nullptr;
    if (tuple) {
      PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(index), items[index]);
    } else {
      Py_XDECREF(items[index]);
    }
  }
  return complete ? tuple.release() : nullptr;
}

// False with a Python exception set.
bool FromPython(PyObject* object, std::string* text);
bool FromPython(PyObject* object, Shape* shape);

// A parameter from a name and a str, int, bool, float or bytes.
bool FromPython(PyObject* name, PyObject* value, TRITONSERVER_Parameter* parameter);

// Raises _triton.NativeError(code, message).
void Raise(const Failure& failure);

// A memoryview of native memory, read-only, that keeps `owner` alive; null with a Python exception set.
PyObject* NewView(const void* data, size_t size, PyObject* owner);

// The module's function: view(address, size, owner), METH_VARARGS.
PyObject* View(PyObject* module, PyObject* arguments);

// Frees the memory of an object of one of our types, whose members are destroyed.
void FreeObject(PyObject* self);

// A function for Python that throws no C++ exception: those of `Function`, which mean that there is no memory or no
// thread, become Python exceptions.
template <auto Function, typename... Arguments>
PyObject* Caught(Arguments... arguments) {
  try {
    return Function(arguments...);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& exc) {
    PyErr_SetString(PyExc_RuntimeError, exc.what());
    return nullptr;
  }
}

// Adds a type or an exception to the module; false with a Python exception set. Each *_type.cc has one of these.
bool AddBufferType(PyObject* module);
bool AddNativeError(PyObject* module);
bool AddCallType(PyObject* module);
bool AddBackendTypes(PyObject* module);
bool AddAgentTypes(PyObject* module);
bool AddBatchStrategyType(PyObject* module);
bool AddCacheType(PyObject* module);

}  // namespace pyruntime
