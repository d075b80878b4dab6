// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "lent_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>
#include <utility>

#include "host.h"
#include "python.h"

namespace pyruntime {
namespace {

// The references to an ended request: the connection, the event that it keeps, and the response in that event.
constexpr long kOwners = 3;

// The event by which Python takes the connection back.
class ReturnedEvent : public Event {
 public:
  explicit ReturnedEvent(std::shared_ptr<LentConnection> connection) : connection_(std::move(connection)) {}
  PyObject* ToPython() override { return connection_->GiveBack(); }

 private:
  std::shared_ptr<LentConnection> connection_;
};

// The event by which Python adopts a request. It precedes all other events of the request.
class AdoptEvent : public Event {
 public:
  explicit AdoptEvent(RequestStatePtr state) : state_(std::move(state)) {}
  PyObject* ToPython() override {
    state_->job();
    return nullptr;
  }

 private:
  RequestStatePtr state_;
};

}  // namespace

LentConnection::LentConnection(
    TRITONBACKEND_ModelInstance* instance, LentTerms terms, std::shared_ptr<ClientSocket> client, PyObject* connection,
    std::string data)
    : instance_(instance),
      terms_(std::move(terms)),
      client_(std::move(client)),
      connection_(Py_NewRef(connection)),
      data_(std::move(data)) {}

LentConnection::~LentConnection() { ReleaseHold(connection_); }

bool LentConnection::Read() {
  std::unique_ptr<TRITONBACKEND_Request> request;
  {
    const std::lock_guard<std::mutex> lock(client_->mutex());
    if (!ended_) request = ReadRequest();
    if (request == nullptr) return !ended_;
  }
  Batch batch{request->state->serial(), {}};
  batch.requests.push_back(std::move(request));
  instance_->Run(batch);
  const std::lock_guard<std::mutex> lock(client_->mutex());
  return !ended_;
}

// Null if there is no complete request yet, or if it is not known: the lending has then ended. Reads at most one
// request from the system, so that the next reader of the socket finds all following bytes.
std::unique_ptr<TRITONBACKEND_Request> LentConnection::ReadRequest() {
  const size_t size = terms_.head.size() + terms_.known->size();
  if (data_.size() < size) {
    const size_t before = data_.size();
    data_.resize(size);
    const ssize_t count = recv(client_->descriptor(), data_.data() + before, size - before, MSG_DONTWAIT);
    const bool is_over = count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    data_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (is_over || !Matches()) {
      ended_ = true;
      Host::Get().queue().Push(std::make_unique<ReturnedEvent>(shared_from_this()));
      return nullptr;
    }
    if (data_.size() < size) return nullptr;
  }
  arrived_ns_ = Now();
  ++begun_;
  std::unique_ptr<TRITONBACKEND_Request> request;
  try {
    request = terms_.known->Make(
        std::string_view(data_).substr(terms_.head.size()), nullptr, instance_->NextLentSerial(),
        {terms_.answer, client_, shared_from_this()});
  } catch (const std::bad_alloc&) {  // Python refuses it
    ended_ = true;
    Host::Get().queue().Push(std::make_unique<ReturnedEvent>(shared_from_this()));
    return nullptr;
  }
  current_ = request->state;
  data_.clear();
  return request;
}

// Whether the part of a request that was read may become a known one.
bool LentConnection::Matches() const {
  const std::string_view data = data_;
  const std::string_view head = data.substr(0, terms_.head.size());
  return head == std::string_view(terms_.head).substr(0, head.size()) && terms_.known->Begins(data.substr(head.size()));
}

bool LentConnection::Ended(const Execution& execution, EventPlace* answer) {
  const std::lock_guard<std::mutex> lock(client_->mutex());
  if (ended_) return false;
  const bool reports_rows = !execution.reported || execution.reported->rows == terms_.rows;
  if (kept_ != nullptr && kept_->IsOver() && reports_rows && current_.use_count() == kOwners) {
    instance_->Count({terms_.rows, arrived_ns_, kept_->sent_ns(), kept_->times(arrived_ns_), execution});
    kept_ = nullptr;
    current_ = nullptr;
    return true;
  }
  BecomePythons();
  *answer = Host::Get().queue().Look(*current_->answer());
  return false;
}

// From now on the current request has the usual events, in the usual order.
void LentConnection::BecomePythons() {
  ended_ = true;
  EventQueue& queue = Host::Get().queue();
  queue.Push(std::make_unique<AdoptEvent>(current_));
  if (kept_ != nullptr) queue.Push(std::move(kept_), current_->answer());
}

bool LentConnection::Send(std::unique_ptr<ResponseEvent>* event) {
  if (ended_) return false;
  if ((*event)->SendToClient()) {
    kept_ = std::move(*event);
  } else {
    Host::Get().queue().Push(std::move(*event), current_->answer());
  }
  return true;
}

bool LentConnection::Release(const std::optional<Statistics>& statistics) {
  const std::lock_guard<std::mutex> lock(client_->mutex());
  if (kept_ == nullptr) return false;
  kept_->Release(statistics);
  return true;
}

PyObject* LentConnection::Adopt(const RequestStatePtr& state) {
  is_back_ = true;
  {
    const std::lock_guard<std::mutex> lock(client_->mutex());
    if (!ended_) BecomePythons();
    current_ = nullptr;
  }
  instance_->StopReading(this);
  instance_->Remember(state);
  PyObject* job = PyObject_CallMethod(
      connection_, "adopt", "KK", static_cast<unsigned long long>(state->serial()),
      static_cast<unsigned long long>(arrived_ns_));
  if (job != nullptr) return job;
  PyErr_WriteUnraisable(connection_);
  return Py_NewRef(Py_None);
}

PyObject* LentConnection::TakeBack() {
  is_back_ = true;
  RequestStatePtr current;
  std::string rest;
  {
    const std::lock_guard<std::mutex> lock(client_->mutex());
    if (!ended_ && current_ != nullptr) BecomePythons();
    ended_ = true;
    current = current_;
    rest = std::move(data_);
  }
  instance_->StopReading(this);
  if (current != nullptr) current->job();
  return PyBytes_FromStringAndSize(rest.data(), static_cast<Py_ssize_t>(rest.size()));
}

PyObject* LentConnection::GiveBack() const {
  return is_back_ ? nullptr : Py_BuildValue("(iO)", kReturned, connection_);
}

}  // namespace pyruntime
