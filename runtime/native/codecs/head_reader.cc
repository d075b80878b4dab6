// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The type PlainHeadReader of the module: heads of plain requests to models as objects of Python.

#include "head_reader.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "http_head.h"
#include "objects.h"

namespace pyruntime {
namespace {

// Where the fields of frontends/http/request_head.Head and frontends/http/routes.Route stand that differ between
// requests.
constexpr Py_ssize_t kRoute = 0, kContentLength = 1, kDocumentLength = 3, kEncoding = 4, kExpectsContinue = 5,
                     kKeepAlive = 6, kTakesChunks = 7, kResponseEncoding = 8, kTraceparent = 9, kLine = 11,
                     kLoadFormat = 13, kAsksToStay = 14;
constexpr Py_ssize_t kModel = 1, kVersion = 2;
// The longest path in a log, as in frontends/common/request_log.py.
constexpr size_t kShownMax = 512;

// An action of models, and the head of requests for it, whose other fields all of them have.
struct Action {
  std::string name;
  Ref head;
  Ref route;
};

struct HeadReader {
  std::vector<Action> actions;
};

struct HeadReaderObject {
  PyObject_HEAD
  std::unique_ptr<HeadReader> reader;
};

HeadReader& HeadReaderOf(PyObject* self) { return *reinterpret_cast<HeadReaderObject*>(self)->reader; }

struct Field {
  Py_ssize_t number;
  PyObject* value;
};

// A named tuple of the same type, with these fields, which it takes over, in place of the first one's.
template <size_t Count>
PyObject* Replace(PyObject* tuple, Field (&&fields)[Count]) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  Ref copy(PyType_GenericAlloc(Py_TYPE(tuple), size));
  bool complete = static_cast<bool>(copy);
  for (Field& field : fields) {
    complete = complete && field.value != nullptr;
    if (copy) PyTuple_SetItem(copy.get(), field.number, field.value);
    else Py_XDECREF(field.value);
  }
  size_t next = 0;
  for (Py_ssize_t number = 0; complete && number < size; ++number) {
    if (next < Count && fields[next].number == number) ++next;
    else PyTuple_SetItem(copy.get(), number, Py_NewRef(PyTuple_GetItem(tuple, number)));
  }
  return complete ? copy.release() : nullptr;
}

PyObject* LengthOrNone(int64_t length) { return length < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(length); }

PyObject* Route(const Action& action, const ModelTarget& target) {
  return Replace(action.route.get(), {{kModel, Text(target.model)}, {kVersion, PyLong_FromLongLong(target.version)}});
}

PyObject* Line(const HttpHead& head) {
  std::string line(head.method);
  line += ' ';
  line += head.target.substr(0, kShownMax);
  return Text(line);
}

PyObject* LowerText(std::string_view text) {
  std::string lower(text);
  for (char& each : lower) {
    if (each >= 'A' && each <= 'Z') each = static_cast<char>(each - 'A' + 'a');
  }
  return Text(lower);
}

// The encoding of a body; nothing for one that is as it is.
PyObject* Encoding(std::string_view name) { return LowerText(Equals(name, "identity") ? "" : name); }

PyObject* HeadOf(const Action& action, const HttpHead& head, const ModelTarget& target, std::string_view encoding) {
  const int64_t length = std::max<int64_t>(head.content_length, 0);
  Ref usual(Replace(action.head.get(), {{kRoute, Route(action, target)},
                                        {kContentLength, PyLong_FromLongLong(length)},
                                        {kDocumentLength, LengthOrNone(head.document_length)},
                                        {kResponseEncoding, Text(encoding)},
                                        {kTraceparent, Text(head.traceparent)},
                                        {kLine, Line(head)},
                                        {kAsksToStay, PyBool_FromLong(0)}}));
  if (head.IsUsual() || !usual) return usual.release();
  const bool may_stay = PyTuple_GetItem(action.head.get(), kAsksToStay) == Py_True;
  return Replace(usual.get(), {{kEncoding, Encoding(head.content_encoding)},
                               {kExpectsContinue, PyBool_FromLong(!head.expect.empty())},
                               {kKeepAlive, PyBool_FromLong(!head.is_old && head.Stays())},
                               {kTakesChunks, PyBool_FromLong(!head.is_old)},
                               {kLoadFormat, LowerText(head.load_format)},
                               {kAsksToStay, PyBool_FromLong(head.is_old && head.Stays() && may_stay)}});
}

// A head with all its headers, if `headers` is not null; None for one that is not plain.
PyObject* ReadHead(PyObject* self, std::string_view bytes, std::vector<HttpHeader>* headers) {
  HttpHead head;
  ModelTarget target;
  std::string_view encoding;
  if (!ReadHttpHead(bytes, &head, headers) || head.method != "POST" || !ReadModelTarget(head.target, &target) ||
      !ReadAcceptEncoding(head.accept_encoding, &encoding)) {
    Py_RETURN_NONE;
  }
  for (const Action& action : HeadReaderOf(self).actions) {
    if (action.name == target.action) return HeadOf(action, head, target, encoding);
  }
  Py_RETURN_NONE;
}

PyObject* HeadReaderRead(PyObject* self, PyObject* argument) {
  const View view(argument);
  return view ? ReadHead(self, view.bytes(), nullptr) : nullptr;
}

PyObject* HeadReaderReadAll(PyObject* self, PyObject* argument) {
  const View view(argument);
  if (!view) return nullptr;
  std::vector<HttpHeader> headers;
  Ref head(ReadHead(self, view.bytes(), &headers));
  if (!head || head.get() == Py_None) return head.release();
  const auto pair = [](const HttpHeader& each) { return Tuple({Text(each.name), Text(each.value)}); };
  return Tuple({head.release(), List(headers, pair)});
}

// Whether an object is a tuple with a field of this number.
bool HasField(PyObject* object, Py_ssize_t number) {
  if (PyTuple_Check(object) && PyTuple_Size(object) > number) return true;
  PyErr_SetString(PyExc_TypeError, "a head, or its route, is no tuple of its fields");
  return false;
}

PyObject* HeadReaderNew(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* parameters[] = {"heads", nullptr};
  PyObject *heads, *name, *head;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O!:PlainHeadReader", const_cast<char**>(parameters), &PyDict_Type,
                                  &heads) == 0) {
    return nullptr;
  }
  auto reader = std::make_unique<HeadReader>();
  Py_ssize_t at = 0;
  while (PyDict_Next(heads, &at, &name, &head) != 0) {
    std::string_view text;
    if (!HasField(head, kAsksToStay) || !HasField(PyTuple_GetItem(head, kRoute), kVersion) || !TextOf(name, &text)) {
      return nullptr;
    }
    PyObject* route = PyTuple_GetItem(head, kRoute);
    reader->actions.push_back({std::string(text), Ref(Py_NewRef(head)), Ref(Py_NewRef(route))});
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&reinterpret_cast<HeadReaderObject*>(self)->reader) std::unique_ptr<HeadReader>(std::move(reader));
  return self;
}

void HeadReaderDealloc(PyObject* self) {
  std::destroy_at(&reinterpret_cast<HeadReaderObject*>(self)->reader);
  PyTypeObject* type = Py_TYPE(self);
  auto* free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

PyMethodDef head_reader_methods[] = {
    {"read", HeadReaderRead, METH_O, nullptr},
    {"read_all", HeadReaderReadAll, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot head_reader_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(HeadReaderNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(HeadReaderDealloc)},
    {Py_tp_methods, head_reader_methods},
    {0, nullptr},
};

}  // namespace

PyType_Spec head_reader_spec = {"pyruntime.runtime.native._codecs.PlainHeadReader", sizeof(HeadReaderObject), 0,
                                Py_TPFLAGS_DEFAULT, head_reader_slots};

}  // namespace pyruntime
