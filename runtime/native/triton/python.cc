// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "python.h"

#include <type_traits>
#include <variant>

#include "host.h"

namespace pyruntime {

PyObject* ToPython(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* ToPython(const Shape& shape) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(shape.size())));
  if (!list) return nullptr;
  for (size_t index = 0; index < shape.size(); ++index) {
    PyObject* dim = PyLong_FromLongLong(shape[index]);
    if (dim == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(index), dim);
  }
  return list.release();
}

PyObject* ToPython(const TRITONSERVER_Parameter& parameter) {
  return std::visit(
      [](const auto& value) -> PyObject* {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return ToPython(value);
        } else if constexpr (std::is_same_v<Value, int64_t>) {
          return PyLong_FromLongLong(value);
        } else if constexpr (std::is_same_v<Value, bool>) {
          return PyBool_FromLong(value ? 1 : 0);
        } else if constexpr (std::is_same_v<Value, double>) {
          return PyFloat_FromDouble(value);
        } else {
          return PyBytes_FromStringAndSize(value.data.data(), static_cast<Py_ssize_t>(value.data.size()));
        }
      },
      parameter.value);
}

PyObject* ToPython(const Failure& failure) {
  Ref message(ToPython(failure.message));
  if (!message) return nullptr;
  return Py_BuildValue("(iO)", static_cast<int>(failure.code), message.get());
}

bool FromPython(PyObject* object, std::string* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) return false;
  text->assign(data, static_cast<size_t>(size));
  return true;
}

bool FromPython(PyObject* object, Shape* shape) {
  const Py_ssize_t count = PySequence_Size(object);
  if (count < 0) return false;
  shape->clear();
  shape->reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    Ref item(PySequence_GetItem(object, index));
    if (!item) return false;
    const long long dim = PyLong_AsLongLong(item.get());
    if (dim == -1 && PyErr_Occurred() != nullptr) return false;
    shape->push_back(dim);
  }
  return true;
}

bool FromPython(PyObject* name, PyObject* value, TRITONSERVER_Parameter* parameter) {
  if (!FromPython(name, &parameter->name)) return false;
  if (PyBool_Check(value)) {
    parameter->value = value == Py_True;
  } else if (PyUnicode_Check(value)) {
    return FromPython(value, &parameter->value.emplace<std::string>());
  } else if (PyLong_Check(value)) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred() != nullptr) return false;
    parameter->value = static_cast<int64_t>(number);
  } else if (PyFloat_Check(value)) {
    parameter->value = PyFloat_AsDouble(value);
  } else if (PyBytes_Check(value)) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(value, &data, &size) < 0) return false;
    parameter->value = TRITONSERVER_Parameter::Bytes{std::string(data, static_cast<size_t>(size))};
  } else {
    PyErr_Format(PyExc_TypeError, "parameter '%U' is neither a string, a number, a boolean nor bytes", name);
    return false;
  }
  return true;
}

void Raise(const Failure& failure) {
  Ref arguments(ToPython(failure));
  if (arguments) PyErr_SetObject(Host::Get().native_error, arguments.get());
}

void FreeObject(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

bool AddNativeError(PyObject* module) {
  Ref error(PyErr_NewExceptionWithDoc(
      "pyruntime.runtime.native._triton.NativeError",
      "A backend, or the system for it, has failed: `args` are the code (see utils/errors.py) and the message.",
      nullptr, nullptr));
  if (!error || PyModule_AddObjectRef(module, "NativeError", error.get()) < 0) return false;
  Host::Get().native_error = error.release();
  return true;
}

}  // namespace pyruntime
