// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Buffer, the memory of an output for Python, and views of memory that native code owns.

#include <Python.h>

#include <cstdint>
#include <new>
#include <utility>

#include "buffer.h"
#include "host.h"
#include "python.h"

namespace pyruntime {
namespace {

struct BufferObject {
  PyObject_HEAD
  Buffer buffer;
};

// The exporter of memoryviews of native memory. Unlike a buffer it can be part of a reference cycle, by its owner.
struct ViewObject {
  PyObject_HEAD
  const void* data;
  Py_ssize_t size;
  PyObject* owner;
};

Buffer& BufferOf(PyObject* self) { return reinterpret_cast<BufferObject*>(self)->buffer; }
ViewObject* ViewOf(PyObject* self) { return reinterpret_cast<ViewObject*>(self); }

void BufferDealloc(PyObject* self) {
  BufferOf(self).~Buffer();
  FreeObject(self);
}

int BufferGet(PyObject* self, Py_buffer* view, int flags) {
  const Buffer& buffer = BufferOf(self);
  return PyBuffer_FillInfo(view, self, buffer.data(), static_cast<Py_ssize_t>(buffer.size()), /*readonly=*/0, flags);
}

Py_ssize_t BufferLength(PyObject* self) { return static_cast<Py_ssize_t>(BufferOf(self).size()); }

PyObject* BufferAddress(PyObject* self, void* /*closure*/) {
  return PyLong_FromUnsignedLongLong(BufferOf(self).address());
}

void ViewDealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(ViewOf(self)->owner);
  FreeObject(self);
}

int ViewTraverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(ViewOf(self)->owner);
  return 0;
}

int ViewClear(PyObject* self) {
  Py_CLEAR(ViewOf(self)->owner);
  return 0;
}

int ViewGet(PyObject* self, Py_buffer* view, int flags) {
  const ViewObject* object = ViewOf(self);
  return PyBuffer_FillInfo(view, self, const_cast<void*>(object->data), object->size, /*readonly=*/1, flags);
}

PyGetSetDef buffer_getters[] = {
    {"address", BufferAddress, nullptr, "The address for other processes; 0 if they cannot read it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot buffer_slots[] = {
    {Py_tp_doc, const_cast<char*>("Contents of an output: memory that is the output's own. Writable.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(BufferDealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(BufferGet)},
    {Py_sq_length, reinterpret_cast<void*>(BufferLength)},
    {Py_tp_getset, buffer_getters},
    {0, nullptr},
};
PyType_Spec buffer_spec = {
    "pyruntime.runtime.native._triton.Buffer", sizeof(BufferObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, buffer_slots};

PyType_Slot view_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(ViewDealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(ViewTraverse)},
    {Py_tp_clear, reinterpret_cast<void*>(ViewClear)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(ViewGet)},
    {0, nullptr},
};
PyType_Spec view_spec = {
    "pyruntime.runtime.native._triton._Memory", sizeof(ViewObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, view_slots};

}  // namespace

bool AddBufferType(PyObject* module) {
  Ref buffer(PyType_FromSpec(&buffer_spec));
  Ref view(PyType_FromSpec(&view_spec));
  if (!buffer || !view || PyModule_AddObjectRef(module, "Buffer", buffer.get()) < 0) return false;
  Host& host = Host::Get();
  host.buffer_type = reinterpret_cast<PyTypeObject*>(buffer.release());
  host.view_type = reinterpret_cast<PyTypeObject*>(view.release());
  return true;
}

PyObject* ToPython(Buffer buffer) {
  PyObject* self = PyType_GenericAlloc(Host::Get().buffer_type, 0);
  if (self == nullptr) return nullptr;
  new (&BufferOf(self)) Buffer(std::move(buffer));
  return self;
}

PyObject* NewView(const void* data, size_t size, PyObject* owner) {
  Ref memory(PyType_GenericAlloc(Host::Get().view_type, 0));
  if (!memory) return nullptr;
  ViewObject* view = ViewOf(memory.get());
  view->data = data;
  view->size = static_cast<Py_ssize_t>(size);
  view->owner = Py_NewRef(owner);
  return PyMemoryView_FromObject(memory.get());
}

PyObject* View(PyObject* /*module*/, PyObject* arguments) {
  unsigned long long address = 0;
  Py_ssize_t size = 0;
  PyObject* owner = nullptr;
  if (!PyArg_ParseTuple(arguments, "KnO:view", &address, &size, &owner)) return nullptr;
  if (size < 0) {
    PyErr_SetString(PyExc_ValueError, "a view of less than no bytes");
    return nullptr;
  }
  return NewView(reinterpret_cast<const void*>(static_cast<uintptr_t>(address)), static_cast<size_t>(size), owner);
}

}  // namespace pyruntime
