// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The way from native threads to Python: a queue of events, and a descriptor that is readable while there are any.
// Native threads never take the GIL, and Python takes all events of a burst at once.

#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pyruntime {

// The first item of every tuple that Python reads: see _triton.pyi, which has the items that follow.
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
  kEarlierResponse = 14,
};

// An event for Python. Made on any thread, without the GIL; converted and destroyed on Python's thread, with it.
class Event {
 public:
  virtual ~Event() = default;
  // The tuple for Python, a new reference. Null without a Python exception if Python need not know of the event. Null
  // with an exception if it is lost, which only a lack of memory should cause: the exception is printed as unraisable.
  virtual PyObject* ToPython() = 0;
};

// The place of an event in the queue, for callers that may change the event. Only the queue reads and writes it.
struct EventPlace {
  uint64_t taking = 0;
  Event* event = nullptr;
};

// When Python gets an event: kSoon wakes Python, kLater waits for the next event that does, or until Python asks.
enum Hurry { kSoon, kLater };

// Any thread may push; one takes. The first kSoon event makes the descriptor readable.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();

  // An eventfd for an event loop to watch.
  int descriptor() const { return descriptor_; }

  // Sets `place`, unless it is null, to the place of the event.
  void Push(std::unique_ptr<Event> event, EventPlace* place = nullptr, Hurry hurry = kSoon);

  // Makes the descriptor readable if there are events, kLater ones included.
  void Signal();

  // While this is on, kLater events are treated as kSoon ones. Calls are counted: it ends with as many calls with
  // false.
  void SetHurried(bool hurried);

  // Changes an event that Python has not taken yet; false if Python has, or there was none. Extending a waiting event
  // is much cheaper than a further event.
  template <class Change>
  bool Amend(const EventPlace& place, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (place.taking != takings_) return false;
    change(place.event);
    return true;
  }

  // The same for the last event of the queue. `change` returns whether it changed the event.
  template <class Change>
  bool AmendLast(const EventPlace& place, const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return place.taking == takings_ && events_.back().get() == place.event && change(place.event);
  }

  // A copy of a place, for use after the owner of the place is gone.
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
  // The number of times that events were taken, plus 1: no event has a place with the number 0.
  uint64_t takings_ = 1;
};

// Whether this thread holds the GIL inside one of our functions, which declare such an object. References to Python
// objects are released at once on such a thread; elsewhere they go through the queue.
class HoldsGil {
 public:
  HoldsGil();
  ~HoldsGil();
  static bool Now();
};

// Releases a reference to a Python object, from any thread.
void ReleaseHold(PyObject* object);

}  // namespace pyruntime
