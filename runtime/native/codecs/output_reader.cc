// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The type OutputReader of the module: the outputs of a plain response out of a message of a stub.
//
// A stub is not trusted. What is accepted lies in its region, and is as the model declares it; the reference is
// instances/codec.py, with instances/output_findings.py.

#include "output_reader.h"

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "infer_request.h"
#include "objects.h"

namespace pyruntime {
namespace {

// An output that a model declares. -1 in a shape is any size.
struct DeclaredOutput {
  std::string name;
  std::string datatype;
  std::vector<int64_t> shape;
};

struct OutputReader {
  std::vector<DeclaredOutput> declared;
  // A view of the stub's region, and the type of an output.
  Ref region;
  Ref type;
  int64_t limit;
  uint64_t address;
};

struct OutputReaderObject {
  PyObject_HEAD
  std::unique_ptr<OutputReader> reader;
};

OutputReader& OutputReaderOf(PyObject* self) { return *reinterpret_cast<OutputReaderObject*>(self)->reader; }

// The fields of utils/request_codec.TensorRef.
enum TensorField {
  kRefName,
  kRefDatatype,
  kRefShape,
  kRefAddress,
  kRefByteSize,
  kRefMemoryKind,
  kRefDeviceId,
  kRefFields,
};

// Whether an object is an integer, and no boolean, in this range.
bool IsBetween(PyObject* object, int64_t first, int64_t last, int64_t* value) {
  if (PyLong_CheckExact(object) == 0) return false;
  int overflow;
  *value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && first <= *value && *value <= last;
}

bool IsText(PyObject* object, const std::string& text) {
  std::string_view found;
  if (PyUnicode_Check(object) == 0) return false;
  if (TextOf(object, &found)) return found == text;
  PyErr_Clear();  // a lone surrogate
  return false;
}

bool HasShape(PyObject* shape, const std::vector<int64_t>& declared) {
  if (PyList_CheckExact(shape) == 0 || static_cast<size_t>(PyList_Size(shape)) != declared.size()) return false;
  for (size_t index = 0; index < declared.size(); ++index) {
    int64_t dim;
    PyObject* item = PyList_GetItem(shape, static_cast<Py_ssize_t>(index));
    if (!IsBetween(item, INT64_MIN, INT64_MAX, &dim) || (declared[index] != -1 && declared[index] != dim)) return false;
  }
  return true;
}

bool IsDeclared(const OutputReader& reader, PyObject* tensor) {
  for (const DeclaredOutput& each : reader.declared) {
    if (!IsText(PyList_GetItem(tensor, kRefName), each.name)) continue;
    return IsText(PyList_GetItem(tensor, kRefDatatype), each.datatype) &&
           HasShape(PyList_GetItem(tensor, kRefShape), each.shape);
  }
  return false;
}

// Where an output lies in the region. False for one that is not plain.
bool ReadOutputRef(const OutputReader& reader, PyObject* tensor, int64_t* offset, int64_t* size) {
  int64_t zero;
  if (PyList_CheckExact(tensor) == 0 || PyList_Size(tensor) != kRefFields || !IsDeclared(reader, tensor)) return false;
  return IsBetween(PyList_GetItem(tensor, kRefAddress), 0, reader.limit, offset) &&
         IsBetween(PyList_GetItem(tensor, kRefByteSize), 0, reader.limit - *offset, size) &&
         IsBetween(PyList_GetItem(tensor, kRefMemoryKind), 0, 0, &zero) &&
         IsBetween(PyList_GetItem(tensor, kRefDeviceId), 0, 0, &zero);
}

// requests/types.OutputTensor.
PyObject* MakeOutput(const OutputReader& reader, PyObject* tensor, int64_t offset, int64_t size) {
  const Ref data(PySequence_GetSlice(reader.region.get(), offset, offset + size));
  const Ref address(PyLong_FromUnsignedLongLong(reader.address + static_cast<uint64_t>(offset)));
  if (!data || !address) return nullptr;
  return PyObject_CallFunctionObjArgs(reader.type.get(), PyList_GetItem(tensor, kRefName),
                                      PyList_GetItem(tensor, kRefDatatype), PyList_GetItem(tensor, kRefShape),
                                      data.get(), address.get(), nullptr);
}

PyObject* OutputReaderRead(PyObject* self, PyObject* tensors) {
  const OutputReader& reader = OutputReaderOf(self);
  if (PyList_CheckExact(tensors) == 0) Py_RETURN_NONE;
  const Py_ssize_t count = PyList_Size(tensors);
  Ref outputs(PyList_New(count));
  int64_t total = 0;
  for (Py_ssize_t index = 0; outputs && index < count; ++index) {
    PyObject* tensor = PyList_GetItem(tensors, index);
    int64_t offset, size;
    if (!ReadOutputRef(reader, tensor, &offset, &size) || __builtin_add_overflow(total, size, &total)) Py_RETURN_NONE;
    PyObject* output = MakeOutput(reader, tensor, offset, size);
    if (output == nullptr) return nullptr;
    PyList_SetItem(outputs.get(), index, output);
  }
  return outputs ? Tuple({outputs.release(), PyLong_FromLongLong(total)}) : nullptr;
}

bool TakeDeclaredOutput(const Ref& item, OutputReader* reader) {
  PyObject *name, *datatype, *shape;
  if (!PyTuple_Check(item.get())) {
    PyErr_SetString(PyExc_TypeError, "an output is a tuple of its name, datatype and shape");
    return false;
  }
  if (PyArg_ParseTuple(item.get(), "UUO", &name, &datatype, &shape) == 0) return false;
  DeclaredOutput& output = reader->declared.emplace_back();
  return FromPython(name, &output.name) && FromPython(datatype, &output.datatype) &&
         ForEach(shape, kDimsMax, [&](const Ref& dim) {
           output.shape.push_back(PyLong_AsLongLong(dim.get()));
           return PyErr_Occurred() == nullptr;
         });
}

PyObject* OutputReaderNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"outputs", "region", "limit", "address", "output_type", nullptr};
  PyObject *outputs, *region, *output_type;
  long long limit;
  unsigned long long address;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "OOLKO:OutputReader", const_cast<char**>(parameters), &outputs,
                                  &region, &limit, &address, &output_type) == 0) {
    return nullptr;
  }
  auto reader = std::make_unique<OutputReader>();
  reader->limit = limit;
  reader->address = address;
  reader->region = Ref(Py_NewRef(region));
  reader->type = Ref(Py_NewRef(output_type));
  const bool is_complete =
      ForEach(outputs, kTensorsMax, [&](const Ref& item) { return TakeDeclaredOutput(item, reader.get()); });
  PyObject* self = is_complete ? PyType_GenericAlloc(type, 0) : nullptr;
  if (self == nullptr) return nullptr;
  new (&reinterpret_cast<OutputReaderObject*>(self)->reader) std::unique_ptr<OutputReader>(std::move(reader));
  return self;
}

void OutputReaderDealloc(PyObject* self) {
  std::destroy_at(&reinterpret_cast<OutputReaderObject*>(self)->reader);
  PyTypeObject* type = Py_TYPE(self);
  auto* free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

PyMethodDef output_reader_methods[] = {
    {"read", OutputReaderRead, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot output_reader_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(OutputReaderNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(OutputReaderDealloc)},
    {Py_tp_methods, output_reader_methods},
    {0, nullptr},
};

}  // namespace

PyType_Spec output_reader_spec = {"pyruntime.runtime.native._codecs.OutputReader", sizeof(OutputReaderObject), 0,
                                  Py_TPFLAGS_DEFAULT, output_reader_slots};

}  // namespace pyruntime
