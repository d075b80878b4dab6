// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "host.h"
#include "inference.h"

namespace pyruntime {

// The buffers to be released by Python.
class HeldBuffers::Return : public Event {
 public:
  explicit Return(PyObject* done) : done_(Py_NewRef(done)) {}

  ~Return() override {
    GiveBack();
    Py_DECREF(done_);
  }

  const Py_buffer* Hold(PyObject* exporter) {
    Py_buffer& view = views_.emplace_back();
    if (PyObject_GetBuffer(exporter, &view, PyBUF_SIMPLE) == 0) return &view;
    views_.pop_back();
    return nullptr;
  }

  PyObject* ToPython() override {
    GiveBack();
    if (done_ == Py_None) return nullptr;
    PyObject* result = PyObject_CallNoArgs(done_);
    Py_XDECREF(result);
    return nullptr;
  }

 private:
  void GiveBack() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }

  PyObject* done_;
  // A deque, for a Py_buffer may point into itself.
  std::deque<Py_buffer> views_;
};

HeldBuffers::HeldBuffers(PyObject* done) : return_(std::make_unique<Return>(done)) {}

HeldBuffers::~HeldBuffers() { Host::Get().queue().Push(std::move(return_)); }

const Py_buffer* HeldBuffers::Hold(PyObject* exporter) { return return_->Hold(exporter); }

}  // namespace pyruntime
