// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.Cache.

#include <new>

#include "backend_objects.h"
#include "host.h"
#include "response_cache.h"

namespace pyruntime {
namespace {

using CachePtr = std::unique_ptr<ResponseCache>;

struct CacheObject {
  PyObject_HEAD
  CachePtr cache;
};

CachePtr& CacheOf(PyObject* self) { return reinterpret_cast<CacheObject*>(self)->cache; }

// Holds the memory of a Python object, which is readable until its release.
class Held {
 public:
  Held() = default;
  ~Held() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool Hold(PyObject* object) { return PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) == 0; }
  void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

PyObject* CacheNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"path", nullptr};
  PyObject* path = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O:Cache", const_cast<char**>(names), &path) == 0) {
    return nullptr;
  }
  std::string library;
  if (!PathFromPython(path, &library)) return nullptr;
  auto cache = std::make_unique<ResponseCache>(std::move(library));
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&CacheOf(self)) CachePtr(std::move(cache));
  return self;
}

void CacheDealloc(PyObject* self) {
  std::destroy_at(&CacheOf(self));
  FreeObject(self);
}

PyObject* CacheOpen(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&cache = *CacheOf(self)] { return cache.Open(); }));
}

PyObject* CacheInitialize(PyObject* self, PyObject* arguments) {
  PyObject* text = nullptr;
  std::string config;
  if (PyArg_ParseTuple(arguments, "U:initialize", &text) == 0 || !FromPython(text, &config)) return nullptr;
  return NoneOrRaise(WithoutGil([&cache = *CacheOf(self), &config] { return cache.Initialize(config); }));
}

PyObject* CacheFinalize(PyObject* self, PyObject* /*unused*/) {
  return NoneOrRaise(WithoutGil([&cache = *CacheOf(self)] { return cache.Finalize(); }));
}

PyObject* CacheLookup(PyObject* self, PyObject* arguments) {
  PyObject* text = nullptr;
  std::string key;
  if (PyArg_ParseTuple(arguments, "U:lookup", &text) == 0 || !FromPython(text, &key)) return nullptr;
  std::vector<Buffer> buffers;
  const std::optional<Failure> failure =
      WithoutGil([&cache = *CacheOf(self), &key, &buffers] { return cache.Lookup(key, &buffers); });
  if (failure) return failure->code == TRITONSERVER_ERROR_NOT_FOUND ? Py_NewRef(Py_None) : NoneOrRaise(failure);
  Ref list(PyList_New(static_cast<Py_ssize_t>(buffers.size())));
  if (!list) return nullptr;
  for (size_t index = 0; index < buffers.size(); ++index) {
    PyObject* buffer = ToPython(std::move(buffers[index]));
    if (buffer == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(index), buffer);
  }
  return list.release();
}

PyObject* CacheInsert(PyObject* self, PyObject* arguments) {
  PyObject *text, *contents;
  std::string key;
  if (PyArg_ParseTuple(arguments, "UO:insert", &text, &contents) == 0 || !FromPython(text, &key)) return nullptr;
  Held held;
  if (!held.Hold(contents)) return nullptr;
  TRITONCACHE_CacheEntry::Slot slot{held.data(), {}};
  slot.attributes.byte_size = held.size();
  const std::optional<Failure> failure =
      WithoutGil([&cache = *CacheOf(self), &key, &slot] { return cache.Insert(key, {slot}); });
  if (failure && failure->code == TRITONSERVER_ERROR_ALREADY_EXISTS) Py_RETURN_FALSE;
  if (!failure) Py_RETURN_TRUE;
  return NoneOrRaise(failure);
}

PyMethodDef cache_methods[] = {
    {"open", Caught<CacheOpen>, METH_NOARGS, "Open the library. Blocks."},
    {"initialize", Caught<CacheInitialize>, METH_VARARGS, "Make the cache. Blocks."},
    {"finalize", Caught<CacheFinalize>, METH_NOARGS, "End the cache. Blocks."},
    {"lookup", Caught<CacheLookup>, METH_VARARGS, "What is kept for a key. Blocks."},
    {"insert", Caught<CacheInsert>, METH_VARARGS, "Have something kept for a key. Blocks."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot cache_slots[] = {
    {Py_tp_doc, const_cast<char*>("A response cache's library.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<CacheNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(CacheDealloc)},
    {Py_tp_methods, cache_methods},
    {0, nullptr},
};
PyType_Spec cache_spec = {
    "pyruntime.runtime.native._triton.Cache", sizeof(CacheObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    cache_slots};

}  // namespace

bool AddCacheType(PyObject* module) {
  const Ref type(PyType_FromSpec(&cache_spec));
  return type && PyModule_AddObjectRef(module, "Cache", type.get()) == 0;
}

}  // namespace pyruntime
