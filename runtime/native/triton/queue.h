// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The one way from native threads to Python: events in a queue, and a descriptor that is readable while there are any.
// A native thread never takes the GIL; Python takes all events of a burst in one go.

#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pyruntime {

// The first element of every tuple that Python reads: see _triton.pyi, which says what follows it.
enum EventKind : int {
  kResponse = 0,
  kReleased = 1,
  kExecuted = 2,
  kBatchStatistics = 3,
  kResponseStatistics = 4,
  kState = 5,
  kLog = 6,
  kCall = 7,
  kActivity = 8,
  kAnswered = 9,
  kEncoded = 10,
  kSent = 11,
  kReturned = 12,
  kCounted = 13,
};

// Something that happened. Made on any thread, without the GIL; read and destroyed on Python's, with it.
class Event {
 public:
  virtual ~Event() = default;
  // The tuple for Python, a new reference. Null without a Python exception: nothing that Python has to know of. Null
  // with one: it is printed as unraisable and the event is lost, which only a lack of memory should cause.
  virtual PyObject* ToPython() = 0;
};

// Where an event was put, for who may want to change it: the queue's own, and read and written by it alone.
struct EventPlace {
  uint64_t taking = 0;
  Event* event = nullptr;
};

// When Python is to hear of an event: kLater is with the next that it is to hear of soon, or when it asks.
enum Hurry { kSoon, kLater };

// Any thread may push; one takes. The descriptor is written to with the first event that Python is to hear of soon.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();

  // An eventfd for an event loop to watch.
  int descriptor() const { return descriptor_; }

  // `place`, if it is not null, is where the event is from now on.
  void Push(std::unique_ptr<Event> event, EventPlace* place = nullptr, Hurry hurry = kSoon);

  // Python is to hear soon of what it was to hear of later.
  void Signal();

  // It is to hear of everything soon: until it has said as often that it need not.
  void SetHurried(bool hurried);

  // Changes an event that Python has not taken yet; false if it has, or there was none. What would be one more event
  // for Python may be part of one that waits: that is cheaper by far.
  template <class Change>
  bool Amend(const EventPlace& place, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place.taking != takings_) return false;
    change(place.event);
    return true;
  }

  // The same for an event that none has followed. `change` says whether it did.
  template <class Change>
  bool AmendLast(const EventPlace& place, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return place.taking == takings_ && events_.back().get() == place.event && change(place.event);
  }

  // A place, for when what it is a part of is gone.
  EventPlace Look(const EventPlace& place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return place;
  }

  // All events so far, in order; the descriptor is not readable then.
  std::vector<std::unique_ptr<Event>> TakeAll();

 private:
  int descriptor_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> events_;
  // The descriptor is readable, or about to be.
  bool signalled_ = false;
  int hurried_ = 0;
  // How often events were taken, and once more: no event was put anywhere at 0.
  uint64_t takings_ = 1;
};

// Whether this thread holds the GIL inside one of our functions: set by `Draining` objects around them. What dies on
// such a thread may give its Python references back at once; elsewhere they travel through the queue.
class HoldsGil {
 public:
  HoldsGil();
  ~HoldsGil();
  static bool Now();
};

// Gives a Python reference back, from any thread.
void ReleaseHold(PyObject* object);

}  // namespace pyruntime
