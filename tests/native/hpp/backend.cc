// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A backend that uses all of pyruntime/backend.hpp: the model's parameter `does` selects the action.

#include <pyruntime/backend.hpp>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace {

using pyruntime::Batch;
using pyruntime::Error;
using pyruntime::Instance;
using pyruntime::InvalidArgument;
using pyruntime::Model;
using pyruntime::Request;
using pyruntime::Response;
using pyruntime::ResponseSender;
using pyruntime::Shape;
using pyruntime::TensorView;

// Returns each existing input as the output of the same datatype.
template <typename T>
void Return(Request& request, const std::string& datatype) {
  if (!request.Has("IN_" + datatype)) {
    return;
  }
  const auto input = request.Input<T>("IN_" + datatype);
  if constexpr (std::is_same_v<T, std::string_view>) {
    request.OutputStrings("OUT_" + datatype, input.shape(), input);
  } else {
    std::copy(input.begin(), input.end(), request.Output<T>("OUT_" + datatype, input.shape()).begin());
  }
}

void Identity(Batch& batch) {
  batch.ForEach([](Request& request) {
    Return<bool>(request, "BOOL");
    Return<uint8_t>(request, "UINT8");
    Return<uint16_t>(request, "UINT16");
    Return<uint32_t>(request, "UINT32");
    Return<uint64_t>(request, "UINT64");
    Return<int8_t>(request, "INT8");
    Return<int16_t>(request, "INT16");
    Return<int32_t>(request, "INT32");
    Return<int64_t>(request, "INT64");
    Return<pyruntime::Float16>(request, "FP16");
    Return<pyruntime::BFloat16>(request, "BF16");
    Return<float>(request, "FP32");
    Return<double>(request, "FP64");
    Return<std::string_view>(request, "BYTES");
  });
}

// Doubles the numbers of all requests at once, with the number of rows for each. Negative numbers are refused before.
void Double(Batch& batch) {
  batch.ForEach([](Request& request) {
    const auto input = request.Input<float>("IN");
    if (std::any_of(input.begin(), input.end(), [](float each) { return each < 0; })) {
      throw InvalidArgument("there is a negative number");
    }
  });
  const auto input = batch.Gather<float>("IN");
  std::vector<float> doubled(input.size());
  std::transform(input.begin(), input.end(), doubled.begin(), [](float each) { return 2 * each; });
  batch.Scatter("OUT", TensorView<float>(doubled.data(), input.shape()));
  std::vector<int32_t> rows(input.rows(), static_cast<int32_t>(batch.rows()));
  batch.Scatter("ROWS", TensorView<int32_t>(rows.data(), {static_cast<int64_t>(rows.size()), 1}));
}

// The same for texts, which are capitalised.
void Capitals(Batch& batch) {
  const auto input = batch.Gather<std::string_view>("TEXT");
  std::vector<std::string> texts(input.begin(), input.end());
  for (std::string& text : texts) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char each) { return std::toupper(each); });
  }
  batch.Scatter("UPPER", TensorView<std::string>(texts.data(), input.shape()));
}

std::string ToText(const pyruntime::ParameterValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::string>) {
          return held;
        } else {
          return std::to_string(held);
        }
      },
      value);
}

// Properties of a request, the model and the instance; NAME selects one.
void Tell(Batch& batch, const Model& model, const Instance& instance) {
  batch.ForEach([&](Request& request) {
    const std::string name(request.Input<std::string_view>("NAME")[0]);
    const std::map<std::string, std::function<std::string()>> answers = {
        {"id", [&] { return request.id(); }},
        {"correlation_id", [&] { return request.correlation_id(); }},
        {"sequence", [&] { return std::to_string(request.sequence_start()) + std::to_string(request.sequence_end()); }},
        {"wants", [&] { return std::to_string(request.Wants("VALUE")) + std::to_string(request.Wants("MORE")); }},
        {"cancelled", [&] { return std::to_string(request.IsCancelled()); }},
        {"model", [&] { return model.name() + " " + std::to_string(model.version()); }},
        {"folder", [&] { return model.version_folder(); }},
        {"otherwise", [&] { return model.Parameter("none", "otherwise"); }},
        {"half", [&] { return std::to_string(model.ParameterAs<float>("half")); }},
        {"five", [&] { return std::to_string(model.ParameterAs<int64_t>("five")); }},
        {"true", [&] { return std::to_string(model.ParameterAs<bool>("true")); }},
        {"half of five", [&] { return std::to_string(model.ParameterAs<int32_t>("half")); }},
        {"none of five", [&] { return std::to_string(model.ParameterAs<int32_t>("none")); }},
        {"inputs", [&] { return model.config()["input"][0]["name"].String(); }},
        {"instance", [&] { return instance.name() + " " + std::to_string(instance.kind()); }},
    };
    const auto found = answers.find(name);
    const auto parameter = request.Parameter(name);
    const std::string value =
        found != answers.end() ? found->second() : parameter.has_value() ? ToText(*parameter) : "nothing";
    request.OutputStrings("VALUE", {1}, std::vector<std::string>{value});
    request.Output<int32_t>("MORE", {1})[0] = 5;
    request.SetParameter("number", 7);
    request.SetParameter("text", "seven");
    request.SetParameter("yes", true);
    request.SetParameter("half", 0.5);
  });
}

// Counts down, on a thread that goes on after Execute has returned. HOW selects variations.
void Count(ResponseSender sender, int32_t from, const std::string& how) {
  for (int32_t i = from; i > 0; --i) {
    Response response = sender.NewResponse();
    response.Output<int32_t>("OUT", {1})[0] = i;
    if (how == "last" && i == 1) {
      sender.SendLast(std::move(response));
    } else {
      sender.Send(std::move(response));
    }
  }
  if (how == "end") {
    sender.End();
    sender.End();
  } else if (how == "fail") {
    sender.Fail(InvalidArgument("failed on purpose"));
  } else if (how == "twice") {
    try {
      sender.End();
      sender.Send(sender.NewResponse());
    } catch (const Error& error) {
      pyruntime::LogWarn(error.what());
    }
  }
}

// Fails in the way that HOW names.
void Fail(Batch& batch) {
  batch.ForEach([](Request& request) {
    const std::string how(request.Input<std::string_view>("HOW")[0]);
    const auto out = request.Output<int32_t>("OUT", {1});
    if (how == "error") {
      throw Error(TRITONSERVER_ERROR_UNAVAILABLE, "refused on purpose");
    }
    if (how == "exception") {
      throw std::out_of_range("out of range on purpose");
    }
    if (how == "nothing sensible") {
      throw 5;
    }
    if (how == "datatype") {
      request.Input<float>("HOW");
    }
    if (how == "input") {
      request.Input<float>("NONE");
    }
    if (how == "shape") {
      request.Output<int32_t>("OUT", {-1});
    }
    if (how == "strings") {
      request.OutputStrings("OUT", {3}, std::vector<std::string>{"one"});
    }
    if (how == "drop") {
      request.Sender();
      return;
    }
    out[0] = 1;
  });
  if (batch.size() == 1 && batch[0].Input<std::string_view>("HOW")[0] == "all") {
    throw Error(TRITONSERVER_ERROR_NOT_FOUND, "all of them");
  }
}

class Everything {
 public:
  Everything(const Model& model, const Instance& instance) : model_(model), instance_(instance) {
    if (model.Parameter("does") == "not load") {
      throw InvalidArgument("not loaded on purpose");
    }
    pyruntime::LogInfo("does " + model.Parameter("does"));
  }

  ~Everything() {
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void Execute(Batch& batch) {
    const std::string& does = model_.Parameter("does");
    if (does == "identity") {
      Identity(batch);
    } else if (does == "double") {
      Double(batch);
    } else if (does == "capitals") {
      Capitals(batch);
    } else if (does == "tell") {
      Tell(batch, model_, instance_);
    } else if (does == "count") {
      StartCounting(batch);
    } else if (does == "fail") {
      Fail(batch);
    }
  }

 private:
  void StartCounting(Batch& batch) {
    batch.ForEach([this](Request& request) {
      const std::string how(request.Input<std::string_view>("HOW")[0]);
      const int32_t from = request.Input<int32_t>("IN")[0];
      if (how == "without a sender") {
        request.Output<int32_t>("OUT", {1})[0] = from;
      } else if (how == "throw") {
        const ResponseSender sender = request.Sender();
        throw InvalidArgument("thrown on purpose");
      } else {
        threads_.emplace_back(Count, request.Sender(), from, how);
      }
    });
  }

  const Model& model_;
  const Instance& instance_;
  std::vector<std::thread> threads_;
};

}  // namespace

PYRUNTIME_BACKEND(Everything)
