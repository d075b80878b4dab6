// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes responses over HTTP, with outputs in the document or behind it: objects of Python become bytes.

#include "http_answer.h"

#include <cstring>
#include <deque>
#include <string>

#include "infer_response.h"
#include "objects.h"
#include "written_responses.h"

namespace pyruntime {
namespace {

// Contents that are written into a document here, of all outputs together. Of more than that a thread makes the
// document: see ANSWERED_AT_ONCE_MAX in inference/threads.py.
constexpr uint64_t kJsonBytesMax = 64 << 10;
// The same for one output of floating-point numbers: orjson is faster at each of many (0038).
constexpr uint64_t kFloatBytesMax = 4 << 10;

// Which outputs are binary: frontends/http/kserve_request.OutputOptions.
struct Ways {
  int by_default;
  Ref by_name;
};

// A response while it is written: its document, and the contents that follow that.
struct Answer {
  Ways ways;
  InferDocument document;
  Ref contents{PyList_New(0)};
  // A deque, as views do not move.
  std::deque<View> views;
  // The bytes of `views`, and of the contents that are in the document.
  uint64_t length = 0;
  uint64_t json_bytes = 0;
};

// The number of items of a list; -1 with an exception for what is none.
Py_ssize_t ListSize(PyObject* list) {
  if (PyList_Check(list)) return PyList_Size(list);
  PyErr_SetString(PyExc_TypeError, "outputs, or the shape of one, are no list");
  return -1;
}

// The functions below return 1; 0 for what is not plain; or -1 with an exception.

int AddDims(PyObject* shape, InferDocument* document) {
  const Py_ssize_t dims = ListSize(shape);
  if (dims < 0) return -1;
  for (Py_ssize_t index = 0; index < dims; ++index) {
    const long long dim = PyLong_AsLongLong(PyList_GetItem(shape, index));
    if (dim == -1 && PyErr_Occurred() != nullptr) return IsCleared(PyExc_OverflowError) ? 0 : -1;
    document->AddDim(dim);
  }
  return 1;
}

int ReadWays(const State& state, PyObject* options, Ways* ways) {
  const Ref by_default = Get(state, options, Attribute::kDefaultBinary);
  ways->by_name = Get(state, options, Attribute::kBinary);
  if (!by_default || !ways->by_name) return -1;
  ways->by_default = PyObject_IsTrue(by_default.get());
  if (ways->by_default < 0) return -1;
  return ways->by_name.get() == Py_None || PyDict_Check(ways->by_name.get()) != 0 ? 1 : 0;
}

// 1 if an output is binary, 0 if it is not, -1 with an exception.
int IsBinary(const Ways& ways, PyObject* name) {
  if (ways.by_name.get() == Py_None) return ways.by_default;
  PyObject* way = PyDict_GetItemWithError(ways.by_name.get(), name);
  if (way != nullptr) return PyObject_IsTrue(way);
  return PyErr_Occurred() == nullptr ? ways.by_default : -1;
}

int AddBinary(PyObject* data, Answer* answer) {
  const View& view = answer->views.emplace_back(data);
  if (!view) return -1;
  answer->document.EndBinary(view.bytes().size());
  answer->length += view.bytes().size();
  return PyList_Append(answer->contents.get(), data) < 0 ? -1 : 1;
}

int AddJson(std::string_view datatype, PyObject* data, Answer* answer) {
  const View view(data);
  if (!view) return -1;
  const size_t size = view.bytes().size();
  answer->json_bytes += size;
  if (answer->json_bytes > kJsonBytesMax) return 0;
  if (datatype.substr(0, 2) == "FP" && size > kFloatBytesMax) return 0;
  return answer->document.EndWithData(datatype, view.bytes()) ? 1 : 0;
}

int AddOutput(const State& state, PyObject* output, Answer* answer) {
  const Ref name = Get(state, output, Attribute::kName), datatype = Get(state, output, Attribute::kDatatype);
  const Ref shape = Get(state, output, Attribute::kShape), data = Get(state, output, Attribute::kData);
  const Ref place = Get(state, output, Attribute::kPlace);
  std::string_view name_text, datatype_text;
  if (!shape || !data || !place) return -1;
  if (!TextOf(name.get(), &name_text) || !TextOf(datatype.get(), &datatype_text)) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  if (place.get() != Py_None || !answer->document.BeginOutput(name_text, datatype_text)) return 0;
  const int added = AddDims(shape.get(), &answer->document);
  if (added != 1) return added;
  const int is_binary = IsBinary(answer->ways, name.get());
  if (is_binary < 0) return -1;
  return is_binary == 1 ? AddBinary(data.get(), answer) : AddJson(datatype_text, data.get(), answer);
}

// Writes a response but for the end of its document. `parameters` are a JSON object, or nothing.
int Write(const State& state, PyObject* response, std::string_view parameters, PyObject* options, Answer* answer) {
  const Ref id = Get(state, response, Attribute::kId), model = Get(state, response, Attribute::kModelName);
  const Ref version = Get(state, response, Attribute::kModelVersion);
  const Ref outputs = Get(state, response, Attribute::kOutputs);
  std::string_view id_text, model_text;
  if (!version || !outputs || !answer->contents) return -1;
  const long long number = PyLong_AsLongLong(version.get());
  if (number == -1 && PyErr_Occurred() != nullptr) return -1;
  if (!TextOf(id.get(), &id_text) || !TextOf(model.get(), &model_text)) {
    return IsCleared(PyExc_UnicodeEncodeError) ? 0 : -1;
  }
  const Py_ssize_t count = ListSize(outputs.get());
  if (count < 0) return -1;
  int added = ReadWays(state, options, &answer->ways);
  if (added == 1 && !answer->document.Begin(id_text, model_text, number, parameters)) return 0;
  for (Py_ssize_t index = 0; added == 1 && index < count; ++index) {
    added = AddOutput(state, PyList_GetItem(outputs.get(), index), answer);
  }
  return added;
}

// The head, the document and all contents as one.
PyObject* Join(const std::string& head, const std::string& document, const Answer& answer) {
  Ref whole(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head.size() + answer.length)));
  if (!whole) return nullptr;
  char* at = PyBytes_AsString(whole.get());
  const auto add = [&](std::string_view bytes) {
    std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  };
  add(head);
  add(document);
  for (const View& view : answer.views) add(view.bytes());
  return whole.release();
}

// The parts of a response: one if its body has no more than so many bytes, else the head with the document, and then the
// contents.
PyObject* Parts(const std::string& head, const std::string& document, uint64_t joined_max, const Answer& answer) {
  Ref parts(PyList_New(1));
  if (!parts) return nullptr;
  PyObject* first = answer.length <= joined_max ? Join(head, document, answer) : Bytes(head + document);
  if (first == nullptr) return nullptr;
  PyList_SetItem(parts.get(), 0, first);
  if (answer.length > joined_max && PyList_SetSlice(parts.get(), 1, 1, answer.contents.get()) < 0) return nullptr;
  return parts.release();
}

}  // namespace

PyObject* WriteAnswer(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError,
                    "write_answer() takes a response, parameters, options, headers, and the size of what is joined");
    return nullptr;
  }
  const unsigned long long joined_max = PyLong_AsUnsignedLongLong(arguments[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const View parameters(arguments[1]), lines(arguments[3]);
  if (!parameters || !lines) return nullptr;
  Answer answer;
  const int written = Write(StateOf(module), arguments[0], parameters.bytes(), arguments[2], &answer);
  if (written != 1) return written == 0 ? Py_NewRef(Py_None) : nullptr;
  const std::string& document = answer.document.End();
  answer.length += document.size();
  const size_t lead = answer.views.empty() ? 0 : document.size();
  const std::string head = InferHead(lead, answer.length, lines.bytes());
  return Tuple({Parts(head, document, joined_max, answer), PyLong_FromUnsignedLongLong(answer.length),
                PyLong_FromSize_t(lead)});
}

PyObject* WriteDocument(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "write_document() takes a response, parameters, and options");
    return nullptr;
  }
  const View parameters(arguments[1]);
  if (!parameters) return nullptr;
  Answer answer;
  const int written = Write(StateOf(module), arguments[0], parameters.bytes(), arguments[2], &answer);
  if (written != 1) return written == 0 ? Py_NewRef(Py_None) : nullptr;
  return Tuple({Bytes(answer.document.End()), answer.contents.release()});
}

}  // namespace pyruntime
