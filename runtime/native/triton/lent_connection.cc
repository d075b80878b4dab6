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

constexpr std::string_view kHeadEnd = "\r\n\r\n";

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

Found FindRequest(std::string_view data, PlacedRequest* request) {
  *request = {};
  const size_t end = data.find(kHeadEnd);
  if (end == std::string_view::npos) return data.size() <= kHeadBytesMax ? Found::kPart : Found::kNone;
  request->head_size = end + kHeadEnd.size();
  HttpHead& head = request->head;
  if (!ReadHttpHead(data.substr(0, request->head_size), &head, nullptr)) return Found::kNone;
  if (head.method != "POST" || !head.IsUsual()) return Found::kNone;
  std::string_view encoding;
  if (!ReadAcceptEncoding(head.accept_encoding, &encoding) || !encoding.empty()) return Found::kNone;
  if (head.content_length < 0 || head.document_length < 0) return Found::kNone;
  const auto length = static_cast<size_t>(head.content_length);
  if (length > kPlainBodyMax || static_cast<size_t>(head.document_length) > length) return Found::kNone;
  request->size = request->head_size + length;
  return data.size() < request->size ? Found::kPart : Found::kWhole;
}

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

// Null if there is no complete request yet, or if it is not plain, or one to another model, or more than one: then the
// lending has ended, and Python gets all the bytes.
std::unique_ptr<TRITONBACKEND_Request> LentConnection::ReadRequest() {
  char read[kHeadBytesMax + kPlainBodyMax];
  size_t size = data_.copy(read, sizeof(read));
  PlacedRequest placed;
  Found found = Find({read, size}, &placed);
  bool is_over = false;
  while (found == Found::kPart && !is_over) {
    // Not more than the longest request had: what follows this one is best left to the next reader of the socket.
    size_t wanted = placed.size != 0 ? placed.size : longest_;
    if (wanted <= size) wanted = sizeof(read);
    const ssize_t count = recv(client_->descriptor(), read + size, wanted - size, MSG_DONTWAIT);
    is_over = count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    if (count <= 0) break;
    size += static_cast<size_t>(count);
    found = Find({read, size}, &placed);
    if (size < wanted) break;
  }
  if (found == Found::kWhole) {
    found = Found::kNone;
    if (placed.size == size) {
      if (std::unique_ptr<TRITONBACKEND_Request> request = Begin({read, size}, placed)) return request;
    }
  }
  data_.assign(read, size);
  if (found == Found::kPart && !is_over) return nullptr;
  ended_ = true;
  Host::Get().queue().Push(std::make_unique<ReturnedEvent>(shared_from_this()));
  return nullptr;
}

Found LentConnection::Find(std::string_view data, PlacedRequest* placed) const {
  const Found found = FindRequest(data, placed);
  const std::string_view line = std::string_view(terms_.line).substr(0, data.size());
  return data.substr(0, line.size()) == line ? found : Found::kNone;
}

// Null if the request is not plain.
std::unique_ptr<TRITONBACKEND_Request> LentConnection::Begin(std::string_view data, const PlacedRequest& placed) {
  const uint64_t arrived_ns = Now();
  int64_t rows = 0;
  std::unique_ptr<TRITONBACKEND_Request> request;
  try {
    request = terms_.requests->Read(
        data.substr(placed.head_size), static_cast<size_t>(placed.head.document_length), nullptr,
        instance_->NextLentSerial(), {terms_.requests, client_, shared_from_this()}, &rows);
  } catch (const std::bad_alloc&) {
    return nullptr;  // Python refuses it
  }
  if (request == nullptr) return nullptr;
  std::string().swap(data_);
  longest_ = std::max(longest_, data.size());
  ++begun_;
  arrived_ns_ = arrived_ns;
  rows_ = static_cast<uint32_t>(rows);
  current_ = request->state;
  return request;
}

bool LentConnection::Ended(const Execution& execution, EventPlace* answer) {
  const std::lock_guard<std::mutex> lock(client_->mutex());
  if (ended_) return false;
  const bool reports_rows = !execution.reported || execution.reported->rows == rows_;
  if (kept_ != nullptr && kept_->IsOver() && reports_rows && current_.use_count() == kOwners) {
    instance_->Count({rows_, arrived_ns_, kept_->sent_ns(), kept_->times(arrived_ns_), execution});
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
  const Ref id(ToPython(state->id()));
  PyObject* job = !id ? nullptr : PyObject_CallMethod(
      connection_, "adopt", "KKOI", static_cast<unsigned long long>(state->serial()),
      static_cast<unsigned long long>(arrived_ns_), id.get(), rows_);
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
