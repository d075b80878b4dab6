// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The type InferReader of the module: what a model declares, and the requests to it as objects of Python.

#include "infer_reader.h"

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "generate_document.h"
#include "infer_document.h"
#include "infer_message.h"
#include "infer_request.h"
#include "objects.h"

namespace pyruntime {
namespace {

struct InferReader {
  DeclaredModel model;
  // The names and datatypes of inputs, and the names of outputs, which all requests share.
  std::vector<std::pair<Ref, Ref>> inputs;
  std::vector<Ref> outputs;
  Ref no_parameters;
};

struct InferReaderObject {
  PyObject_HEAD
  std::unique_ptr<InferReader> reader;
};

InferReader& ReaderOf(PyObject* self) { return *reinterpret_cast<InferReaderObject*>(self)->reader; }

bool TakeInput(const Ref& item, InferReader* reader) {
  PyObject *name, *datatype, *shape;
  long long element_bytes;
  int required;
  if (!PyTuple_Check(item.get())) {
    PyErr_SetString(PyExc_TypeError, "an input is a tuple of its name, datatype, size of elements, shape, and need");
    return false;
  }
  if (PyArg_ParseTuple(item.get(), "UULOp", &name, &datatype, &element_bytes, &shape, &required) == 0) return false;
  DeclaredInput& input = reader->model.inputs.emplace_back();
  input.element_bytes = element_bytes;
  input.required = required != 0;
  reader->inputs.emplace_back(Ref(Py_NewRef(name)), Ref(Py_NewRef(datatype)));
  return FromPython(name, &input.name) && FromPython(datatype, &input.datatype) &&
         ForEach(shape, kDimsMax, [&](const Ref& dim) {
           input.shape.push_back(PyLong_AsLongLong(dim.get()));
           return PyErr_Occurred() == nullptr;
         });
}

PyObject* ReaderNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"inputs", "outputs", "max_batch_size", nullptr};
  PyObject *inputs, *outputs;
  long long max_batch_size;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "OOL:InferReader", const_cast<char**>(parameters), &inputs,
                                  &outputs, &max_batch_size) == 0) {
    return nullptr;
  }
  auto reader = std::make_unique<InferReader>();
  reader->model.max_batch_size = max_batch_size;
  reader->no_parameters = Ref(Text(""));
  const bool is_complete =
      reader->no_parameters && ForEach(inputs, kTensorsMax, [&](const Ref& item) { return TakeInput(item, reader.get()); }) &&
      ForEach(outputs, kTensorsMax, [&](const Ref& item) {
        reader->outputs.emplace_back(item.share());
        return FromPython(item.get(), &reader->model.outputs.emplace_back());
      });
  PyObject* self = is_complete ? PyType_GenericAlloc(type, 0) : nullptr;
  if (self == nullptr) return nullptr;
  new (&reinterpret_cast<InferReaderObject*>(self)->reader) std::unique_ptr<InferReader>(std::move(reader));
  return self;
}

void ReaderDealloc(PyObject* self) {
  std::destroy_at(&reinterpret_cast<InferReaderObject*>(self)->reader);
  PyTypeObject* type = Py_TYPE(self);
  auto* free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

PyObject* ShapeList(const InferTensor& tensor) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(tensor.dims)));
  for (size_t index = 0; list && index < tensor.dims; ++index) {
    PyObject* dim = PyLong_FromLongLong(tensor.shape[index]);
    if (dim == nullptr) return nullptr;
    PyList_SetItem(list.get(), static_cast<Py_ssize_t>(index), dim);
  }
  return list.release();
}

// The fields of utils/request_codec.RequestOptions, in their order.
PyObject* OptionsTuple(const InferReader& reader, const InferRequest& request) {
  const auto name = [&](size_t number) { return reader.outputs[number].share(); };
  PyObject* sequence = request.sequence_name.empty() ? PyLong_FromUnsignedLongLong(request.sequence_id)
                                                     : Text(request.sequence_name);
  return Tuple({sequence, PyLong_FromLong((request.starts_sequence ? 1 : 0) | (request.ends_sequence ? 2 : 0)),
                PyLong_FromUnsignedLongLong(request.timeout_us),
                request.outputs.empty() ? Py_NewRef(Py_None) : List(request.outputs, name),
                request.parameters.empty() ? reader.no_parameters.share() : Text(request.parameters)});
}

// References to the tensors in main memory: utils/request_codec.TensorRef. What was read lies at `address`, and the
// contents that were made at `made`.
PyObject* TensorList(const InferReader& reader, const InferRequest& request, unsigned long long address,
                     unsigned long long made) {
  return List(request.tensors, [&](const InferTensor& tensor) {
    const auto& [name, datatype] = reader.inputs[tensor.input];
    return Tuple({name.share(), datatype.share(), ShapeList(tensor),
                  PyLong_FromUnsignedLongLong((tensor.made ? made : address) + tensor.offset),
                  PyLong_FromUnsignedLongLong(tensor.byte_size), PyLong_FromLong(0), PyLong_FromLong(0)});
  });
}

// Whether outputs are binary: a bool for all of them, or a dict with one for each by its name.
PyObject* BinaryOutputs(const InferReader& reader, const InferRequest& request) {
  if (request.binary.empty()) return PyBool_FromLong(request.binary_outputs ? 1 : 0);
  Ref flags(PyDict_New());
  for (size_t index = 0; flags && index < request.binary.size(); ++index) {
    PyObject* name = reader.outputs[request.outputs[index]].get();
    if (PyDict_SetItem(flags.get(), name, request.binary[index] ? Py_True : Py_False) < 0) return nullptr;
  }
  return flags.release();
}

// Calls `allocate` with the contents that were made. Sets the slot that it returns, and their address.
bool Place(const InferRequest& request, PyObject* allocate, Ref* slot, unsigned long long* address) {
  const Ref size(PyLong_FromSize_t(request.contents.size())), lead(PyLong_FromLong(0)), data(Bytes(request.contents));
  if (!size || !lead || !data) return false;
  *slot = Ref(PyObject_CallFunctionObjArgs(allocate, size.get(), lead.get(), data.get(), nullptr));
  const Ref offset(*slot ? PyObject_GetAttrString(slot->get(), "offset") : nullptr);
  if (!offset) return false;
  *address = PyLong_AsUnsignedLongLong(offset.get());
  return PyErr_Occurred() == nullptr;
}

// The fields of inference/plain_requests.PlainRequest, in their order.
PyObject* RequestTuple(const InferReader& reader, const InferRequest& request, PyObject* id, unsigned long long address,
                       PyObject* allocate = nullptr) {
  Ref owned_id(id), slot(Py_NewRef(Py_None));
  unsigned long long made = 0;
  if (!request.contents.empty() && !Place(request, allocate, &slot, &made)) return nullptr;
  return Tuple({owned_id.release(), OptionsTuple(reader, request), TensorList(reader, request, address, made),
                PyLong_FromLongLong(request.rows), PyLong_FromUnsignedLongLong(request.priority),
                BinaryOutputs(reader, request), slot.release()});
}

PyObject* ReaderReadDocument(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "read_document() takes a body, the length of its document, an address, and memory");
    return nullptr;
  }
  const size_t document = PyLong_AsSize_t(arguments[1]);
  const unsigned long long address = PyLong_AsUnsignedLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const View view(arguments[0]);
  if (!view) return nullptr;
  const InferReader& reader = ReaderOf(self);
  InferRequest request;
  if (!ReadInferDocument(reader.model, view.bytes(), document, &request)) Py_RETURN_NONE;
  return RequestTuple(reader, request, Text(request.id), address, arguments[3]);
}

PyObject* ReaderReadGenerate(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "read_generate() takes a body, and memory");
    return nullptr;
  }
  const View view(arguments[0]);
  if (!view) return nullptr;
  const InferReader& reader = ReaderOf(self);
  InferRequest request;
  if (!ReadGenerateDocument(reader.model, view.bytes(), &request)) Py_RETURN_NONE;
  return RequestTuple(reader, request, Text(request.id), 0, arguments[1]);
}

PyObject* ReaderReadMessage(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "read_message() takes an id, a message, memory, and an address");
    return nullptr;
  }
  const unsigned long long address = PyLong_AsUnsignedLongLong(arguments[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const View message(arguments[1]), memory(arguments[2], PyBUF_WRITABLE);
  if (!message || !memory) return nullptr;
  const InferReader& reader = ReaderOf(self);
  InferRequest request;
  if (!ReadInferMessage(reader.model, message.bytes(), memory.data(), memory.bytes().size(), &request)) Py_RETURN_NONE;
  return RequestTuple(reader, request, Py_NewRef(arguments[0]), address);
}

PyMethodDef reader_methods[] = {
    {"read_document", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ReaderReadDocument)), METH_FASTCALL,
     nullptr},
    {"read_generate", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ReaderReadGenerate)), METH_FASTCALL,
     nullptr},
    {"read_message", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ReaderReadMessage)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot reader_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(ReaderNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(ReaderDealloc)},
    {Py_tp_methods, reader_methods},
    {0, nullptr},
};

}  // namespace

PyType_Spec reader_spec = {"pyruntime.runtime.native._codecs.InferReader", sizeof(InferReaderObject), 0,
                           Py_TPFLAGS_DEFAULT, reader_slots};

}  // namespace pyruntime
