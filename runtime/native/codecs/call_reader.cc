// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the module that read what leads to a model over gRPC: the head of a call, and the target of a message.

#include "call_reader.h"

#include "call_head.h"
#include "infer_message.h"
#include "objects.h"

namespace pyruntime {

// As in repository/lifecycle.py: the version that is left to the server.
constexpr long long kLatest = -1;

// The fields of frontends/grpc/head.CallHead, in their order.
PyObject* ReadCall(PyObject*, PyObject* packed) {
  const View view(packed);
  if (!view) return nullptr;
  CallHead head;
  if (!ReadCallHead(view.bytes(), &head)) Py_RETURN_NONE;
  return Tuple({Text(head.path), Py_NewRef(packed), Text(head.encoding.empty() ? "identity" : head.encoding), Bytes(""),
                PyTuple_New(0), Text(head.traceparent), Text("")});
}

PyObject* ReadTarget(PyObject*, PyObject* argument) {
  const View message(argument);
  if (!message) return nullptr;
  MessageTarget target;
  if (!ReadMessageTarget(message.bytes(), &target)) Py_RETURN_NONE;
  PyObject* read = Tuple({Text(target.model), PyLong_FromLongLong(target.version > 0 ? target.version : kLatest),
                          Text(target.id), PyLong_FromUnsignedLongLong(target.contents_bytes)});
  return read == nullptr ? NoneIf(PyExc_UnicodeDecodeError) : read;
}

}  // namespace pyruntime
