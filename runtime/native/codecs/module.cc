// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The module pyruntime.runtime.native._codecs, which _codecs.pyi describes: the only file here that knows Python.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>
#include <utility>

#include "http_head.h"
#include "infer_document.h"
#include "infer_message.h"
#include "infer_request.h"
#include "infer_response.h"

namespace pyruntime {
namespace {

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
  explicit View(PyObject* object) : is_held_(PyObject_GetBuffer(object, &buffer_, PyBUF_SIMPLE) == 0) {}
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (is_held_) PyBuffer_Release(&buffer_);
  }

  explicit operator bool() const { return is_held_; }
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

PyObject* Text(std::string_view text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* Bytes(std::string_view bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

// Heads.

PyObject* ReadHead(PyObject*, PyObject* argument) {
  const View view(argument);
  if (!view) return nullptr;
  HttpHead head;
  if (!ReadHttpHead(view.bytes(), &head)) Py_RETURN_NONE;
  return Tuple({Text(head.method), Bytes(head.target), PyLong_FromLongLong(head.content_length),
                PyLong_FromLongLong(head.document_length), Text(head.accept_encoding), Text(head.traceparent)});
}

// Requests.

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

bool FromPython(PyObject* text, std::string* out) {
  Py_ssize_t size;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) return false;
  out->assign(data, static_cast<size_t>(size));
  return true;
}

// Calls `take` with each item of a sequence, of which there may be as many as kTensorsMax.
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

// References to the tensors in main memory: utils/request_codec.TensorRef.
PyObject* TensorList(const InferReader& reader, const InferRequest& request, unsigned long long address) {
  return List(request.tensors, [&](const InferTensor& tensor) {
    const auto& [name, datatype] = reader.inputs[tensor.input];
    return Tuple({name.share(), datatype.share(), ShapeList(tensor),
                  PyLong_FromUnsignedLongLong(address + tensor.offset), PyLong_FromUnsignedLongLong(tensor.byte_size),
                  PyLong_FromLong(0), PyLong_FromLong(0)});
  });
}

PyObject* RequestTuple(const InferReader& reader, const InferRequest& request, PyObject* id,
                       unsigned long long address) {
  return Tuple({id, OptionsTuple(reader, request), TensorList(reader, request, address),
                PyLong_FromLongLong(request.rows), PyLong_FromUnsignedLongLong(request.priority),
                PyBool_FromLong(request.binary_outputs ? 1 : 0)});
}

PyObject* ReaderReadDocument(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "read_document() takes a body, the length of its document, and an address");
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
  return RequestTuple(reader, request, Text(request.id), address);
}

// The places of raw contents, pairs of offset and length. Returns 1; 0 if they do not lie in the memory, or are more
// than any model has inputs; or -1 with an exception.
int ReadRaws(PyObject* places, std::string_view memory, std::vector<RawContents>* raws) {
  const Py_ssize_t count = PySequence_Size(places);
  if (count < 0) return -1;
  if (static_cast<size_t>(count) > kTensorsMax) return 0;
  raws->reserve(static_cast<size_t>(count));
  for (Py_ssize_t index = 0; index < count; ++index) {
    const Ref place(PySequence_GetItem(places, index));
    unsigned long long offset, length;
    if (!place) return -1;
    if (!PyTuple_Check(place.get())) {
      PyErr_SetString(PyExc_TypeError, "a place is a tuple of an offset and a length");
      return -1;
    }
    if (PyArg_ParseTuple(place.get(), "KK", &offset, &length) == 0) return -1;
    if (offset > memory.size() || length > memory.size() - offset) return 0;
    raws->push_back({offset, memory.substr(offset, length)});
  }
  return 1;
}

PyObject* ReaderReadMessage(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "read_message() takes an id, a message, its memory, places in it, and an address");
    return nullptr;
  }
  const unsigned long long address = PyLong_AsUnsignedLongLong(arguments[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const View message(arguments[1]), memory(arguments[2]);
  if (!message || !memory) return nullptr;
  std::vector<RawContents> raws;
  const int found = ReadRaws(arguments[3], memory.bytes(), &raws);
  if (found < 0) return nullptr;
  const InferReader& reader = ReaderOf(self);
  InferRequest request;
  if (found == 0 || !ReadInferMessage(reader.model, message.bytes(), raws, &request)) Py_RETURN_NONE;
  return RequestTuple(reader, request, Py_NewRef(arguments[0]), address);
}

PyMethodDef reader_methods[] = {
    {"read_document", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ReaderReadDocument)), METH_FASTCALL,
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
PyType_Spec reader_spec = {"pyruntime.runtime.native._codecs.InferReader", sizeof(InferReaderObject), 0,
                           Py_TPFLAGS_DEFAULT, reader_slots};

// Responses.

// A view of the text of a str, which lives as long as that.
bool TextOf(PyObject* object, std::string_view* text) {
  Py_ssize_t size;
  const char* data = object == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) return false;
  *text = {data, static_cast<size_t>(size)};
  return true;
}

// Clears an exception of this type, which is one for the reference to word: a lone surrogate, or too large a number.
bool IsCleared(PyObject* type) {
  if (PyErr_ExceptionMatches(type) == 0) return false;
  PyErr_Clear();
  return true;
}

PyObject* NoneIf(PyObject* type) { return IsCleared(type) ? Py_NewRef(Py_None) : nullptr; }

struct State {
  // The attributes of an output.
  PyObject* name;
  PyObject* datatype;
  PyObject* shape;
  PyObject* data;
};

State& StateOf(PyObject* module) { return *static_cast<State*>(PyModule_GetState(module)); }

// Adds an output, its contents to `parts` and their size to `length`. Returns 1; 0 for one that is not plain; or -1 with
// an exception.
int AddOutput(const State& state, PyObject* output, PyObject* parts, uint64_t* length, InferDocument* document) {
  const Ref name(PyObject_GetAttr(output, state.name)), datatype(PyObject_GetAttr(output, state.datatype));
  const Ref shape(PyObject_GetAttr(output, state.shape)), data(PyObject_GetAttr(output, state.data));
  std::string_view name_text, datatype_text;
  if (!TextOf(name.get(), &name_text) || !TextOf(datatype.get(), &datatype_text) || !shape || !data) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  if (!document->BeginOutput(name_text, datatype_text)) return 0;
  const Py_ssize_t dims = PyList_Size(shape.get()), size = PyObject_Size(data.get());
  if (dims < 0 || size < 0) return -1;
  for (Py_ssize_t index = 0; index < dims; ++index) {
    const long long dim = PyLong_AsLongLong(PyList_GetItem(shape.get(), index));
    if (dim == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
    document->AddDim(dim);
  }
  document->EndOutput(static_cast<uint64_t>(size));
  *length += static_cast<uint64_t>(size);
  return PyList_Append(parts, data.get()) < 0 ? -1 : 1;
}

PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "write_document() takes an id, the name of a model, its version, and outputs");
    return nullptr;
  }
  std::string_view id, model;
  const long long version = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!TextOf(arguments[0], &id) || !TextOf(arguments[1], &model)) return NoneIf(PyExc_UnicodeEncodeError);
  InferDocument document;
  if (!document.Begin(id, model, version)) Py_RETURN_NONE;
  Ref parts(PyList_New(0));
  const Py_ssize_t outputs = PyList_Size(arguments[3]);
  if (!parts || outputs < 0) return nullptr;
  uint64_t length = 0;
  for (Py_ssize_t index = 0; index < outputs; ++index) {
    const int added =
        AddOutput(StateOf(module), PyList_GetItem(arguments[3], index), parts.get(), &length, &document);
    if (added < 0) return nullptr;
    if (added == 0) Py_RETURN_NONE;
  }
  const std::string& text = document.End();
  return Tuple({Bytes(text), parts.release(), PyLong_FromUnsignedLongLong(length + text.size())});
}

int Execute(PyObject* module) {
  State& state = StateOf(module);
  state = {PyUnicode_InternFromString("name"), PyUnicode_InternFromString("datatype"),
           PyUnicode_InternFromString("shape"), PyUnicode_InternFromString("data")};
  if (state.name == nullptr || state.datatype == nullptr || state.shape == nullptr || state.data == nullptr) return -1;
  const Ref type(PyType_FromModuleAndSpec(module, &reader_spec, nullptr));
  return type ? PyModule_AddObjectRef(module, "InferReader", type.get()) : -1;
}

PyMethodDef functions[] = {
    {"read_head", ReadHead, METH_O, nullptr},
    {"write_document", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(WriteDocument)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(Execute)}, {0, nullptr}};

void Free(void* module) {
  State& state = StateOf(static_cast<PyObject*>(module));
  for (PyObject* each : {state.name, state.datatype, state.shape, state.data}) Py_XDECREF(each);
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_codecs", nullptr, sizeof(State), functions, slots, nullptr, nullptr,
                          Free};

}  // namespace
}  // namespace pyruntime

PyMODINIT_FUNC PyInit__codecs() { return PyModuleDef_Init(&pyruntime::definition); }
