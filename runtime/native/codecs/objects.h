// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Python's objects: who owns them, and how values become such.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace pyruntime {

// Owns a reference.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  PyObject* share() const { return Py_XNewRef(object_); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Owns a view of a buffer.
class View {
 public:
  explicit View(PyObject* object, int flags = PyBUF_SIMPLE)
      : is_held_(PyObject_GetBuffer(object, &buffer_, flags) == 0) {}
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (is_held_) PyBuffer_Release(&buffer_);
  }

  explicit operator bool() const { return is_held_; }
  char* data() const { return static_cast<char*>(buffer_.buf); }
  std::string_view bytes() const { return {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)}; }

 private:
  Py_buffer buffer_;
  bool is_held_;
};

// A tuple, or a list, that takes over these references; null with the others released if one of them is null.
template <size_t Count>
PyObject* Tuple(PyObject* (&&items)[Count]) {
  Ref tuple(PyTuple_New(Count));
  bool complete = static_cast<bool>(tuple);
  for (size_t index = 0; index < Count; ++index) {
    complete = complete && items[index] != nullptr;
    if (tuple) PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(index), items[index]);
    else Py_XDECREF(items[index]);
  }
  return complete ? tuple.release() : nullptr;
}

template <typename Items, typename Make>
PyObject* List(const Items& items, Make make) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t index = 0; list && index < items.size(); ++index) {
    PyObject* item = make(items[index]);
    if (item == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(index), item);
  }
  return list.release();
}

inline PyObject* Text(std::string_view text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

inline PyObject* Bytes(std::string_view bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

// A view of the text of a str, which lives as long as that.
inline bool TextOf(PyObject* object, std::string_view* text) {
  Py_ssize_t size;
  const char* data = object == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) return false;
  *text = {data, static_cast<size_t>(size)};
  return true;
}

inline bool FromPython(PyObject* text, std::string* out) {
  Py_ssize_t size;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) return false;
  out->assign(data, static_cast<size_t>(size));
  return true;
}

// Calls `take` with each item of a sequence, of which there may be `count_max`.
template <typename Take>
bool ForEach(PyObject* sequence, size_t count_max, Take take) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  if (static_cast<size_t>(count) > count_max) {
    PyErr_Format(PyExc_ValueError, "%zd items, expected at most %zu", count, count_max);
    return false;
  }
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item || !take(item)) return false;
  }
  return true;
}

// Clears an exception of this type, which is one for the reference to word: a lone surrogate, or too large a number.
inline bool IsCleared(PyObject* type) {
  if (PyErr_ExceptionMatches(type) == 0) return false;
  PyErr_Clear();
  return true;
}

inline PyObject* NoneIf(PyObject* type) { return IsCleared(type) ? Py_NewRef(Py_None) : nullptr; }

}  // namespace pyruntime
