// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// _triton.OutputRegion

#include <cerrno>
#include <new>
#include <system_error>

#include "backend_objects.h"
#include "host.h"
#include "output_region.h"

namespace pyruntime {
namespace {

struct OutputRegionObject {
  PyObject_HEAD
  std::shared_ptr<BufferPool> pool;
};

std::shared_ptr<BufferPool>& PoolOf(PyObject* self) { return reinterpret_cast<OutputRegionObject*>(self)->pool; }

bool ReadCgroups(PyObject* sequence, std::vector<MemoryCgroup>* cgroups) {
  const Py_ssize_t count = PySequence_Size(sequence);
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref item(PySequence_GetItem(sequence, index));
    if (!item) return false;
    PyObject *limit, *usage, *statistics, *caches;
    if (!PyTuple_Check(item.get())) {
      PyErr_SetString(PyExc_TypeError, "a cgroup is a tuple of its limit, its usage, its statistics and their names");
      return false;
    }
    if (PyArg_ParseTuple(item.get(), "UUUO", &limit, &usage, &statistics, &caches) == 0) return false;
    MemoryCgroup& cgroup = cgroups->emplace_back();
    if (!FromPython(limit, &cgroup.limit) || !FromPython(usage, &cgroup.usage) ||
        !FromPython(statistics, &cgroup.statistics) || !NamesFromPython(caches, &cgroup.caches)) {
      return false;
    }
  }
  return count >= 0;
}

PyObject* RegionNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"descriptor", "size", "first_address", "cgroups", nullptr};
  int descriptor = -1;
  Py_ssize_t size = 0;
  unsigned long long first_address = 0;
  PyObject* found = nullptr;
  std::vector<MemoryCgroup> cgroups;
  if (PyArg_ParseTupleAndKeywords(
          arguments, keywords, "inKO:OutputRegion", const_cast<char**>(parameters), &descriptor, &size, &first_address,
          &found) == 0 ||
      !ReadCgroups(found, &cgroups)) {
    return nullptr;
  }
  std::shared_ptr<BufferPool> pool;
  try {
    pool = std::make_shared<BufferPool>(std::make_unique<OutputRegion>(
        descriptor, static_cast<size_t>(size), first_address, std::move(cgroups)));
  } catch (const std::system_error& exc) {
    errno = exc.code().value();
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&PoolOf(self)) std::shared_ptr<BufferPool>(std::move(pool));
  return self;
}

void RegionDealloc(PyObject* self) {
  std::destroy_at(&PoolOf(self));
  FreeObject(self);
}

PyType_Slot region_slots[] = {
    {Py_tp_doc, const_cast<char*>("Shared memory for large outputs of an instance.")},
    {Py_tp_new, reinterpret_cast<void*>(static_cast<newfunc>(Caught<RegionNew>))},
    {Py_tp_dealloc, reinterpret_cast<void*>(RegionDealloc)},
    {0, nullptr},
};
PyType_Spec region_spec = {
    "pyruntime.runtime.native._triton.OutputRegion", sizeof(OutputRegionObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, region_slots};

}  // namespace

bool AddOutputRegionType(PyObject* module) {
  Ref type(PyType_FromSpec(&region_spec));
  if (!type || PyModule_AddObjectRef(module, "OutputRegion", type.get()) < 0) return false;
  Host::Get().output_region_type = reinterpret_cast<PyTypeObject*>(type.release());
  return true;
}

std::shared_ptr<BufferPool> OutputPoolOf(PyObject* object) {
  return Py_TYPE(object) == Host::Get().output_region_type ? PoolOf(object) : nullptr;
}

}  // namespace pyruntime
