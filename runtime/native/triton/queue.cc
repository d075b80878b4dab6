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

// Carries a reference to a place where it can be released.
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

void EventQueue::Push(std::unique_ptr<Event> event, EventPlace* place, Hurry hurry) {
  bool signals;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place != nullptr) *place = {takings_, event.get()};
    events_.push_back(std::move(event));
    signals = !signalled_ && (hurried_ > 0 || hurry == kSoon);
    signalled_ = signalled_ || signals;
  }
  // It fails only if the counter is at its maximum, and then the descriptor is readable anyway.
  if (signals) eventfd_write(descriptor_, 1);
}

void EventQueue::Signal() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (signalled_ || events_.empty()) return;
  signalled_ = true;
  eventfd_write(descriptor_, 1);
}

void EventQueue::SetHurried(bool hurried) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    hurried_ += hurried ? 1 : -1;
  }
  if (hurried) Signal();
}

std::vector<std::unique_ptr<Event>> EventQueue::TakeAll() {
  std::vector<std::unique_ptr<Event>> events;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (signalled_) {
    // A push that writes to the descriptor only after this makes Python drain once in vain.
    eventfd_t count;
    eventfd_read(descriptor_, &count);
    signalled_ = false;
  }
  events.swap(events_);
  ++takings_;
  return events;
}

HoldsGil::HoldsGil() { ++gil_depth; }
HoldsGil::~HoldsGil() { --gil_depth; }
bool HoldsGil::Now() { return gil_depth != 0; }

void ReleaseHold(PyObject* object) {
  if (HoldsGil::Now()) {
    Py_DECREF(object);
  } else {
    Host::Get().queue().Push(std::make_unique<DropEvent>(object));
  }
}

}  // namespace pyruntime
