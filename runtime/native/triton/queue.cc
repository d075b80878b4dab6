// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "host.h"

namespace pyruntime {
namespace {

thread_local int gil_depth = 0;

// Carries a reference to where it can be given back.
class DropEvent : public Event {
 public:
  explicit DropEvent(PyObject* object) : object_(object) {}
  ~DropEvent() override { Py_DECREF(object_); }
  PyObject* ToPython() override { return nullptr; }

 private:
  PyObject* object_;
};

}  // namespace

EventQueue::EventQueue() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

EventQueue::~EventQueue() { close(descriptor_); }

void EventQueue::Push(std::unique_ptr<Event> event, EventPlace* place) {
  bool was_empty;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place != nullptr) *place = {takings_, event.get()};
    was_empty = events_.empty();
    events_.push_back(std::move(event));
  }
  // It can only fail where the counter is at its end, and then it is readable anyway.
  if (was_empty) eventfd_write(descriptor_, 1);
}

std::vector<std::unique_ptr<Event>> EventQueue::TakeAll() {
  // First of all: what is pushed after the events are taken writes to it again. (What is pushed before, and writes
  // after, makes Python look once in vain.)
  eventfd_t count;
  eventfd_read(descriptor_, &count);
  std::vector<std::unique_ptr<Event>> events;
  const std::lock_guard<std::mutex> lock(mutex_);
  events.swap(events_);
  ++takings_;
  return events;
}

HoldsGil::HoldsGil() { ++gil_depth; }
HoldsGil::~HoldsGil() { --gil_depth; }
bool HoldsGil::Now() { return gil_depth != 0; }

void Drop(PyObject* object) {
  if (HoldsGil::Now()) {
    Py_DECREF(object);
  } else {
    Host::Get().queue().Push(std::make_unique<DropEvent>(object));
  }
}

}  // namespace pyruntime
