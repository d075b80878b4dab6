// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Makes the batch inputs that its configuration asks for, and distributes the batch outputs.
//
// The inputs are FP32 and may be ragged. OUT, a batch output, has twice the elements of its source; SHAPES (BYTES [1]),
// the same for all requests of a batch, has the batch inputs as text: "<target>: <datatype> [<shape>] <elements>; ...".
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common.h"
#include "json.h"

namespace {

using testing::Error;
using testing::Fail;
using testing::Json;
using testing::Must;
using testing::StateOf;
using testing::Tensor;

using Shape = std::vector<int64_t>;

struct BatchInput {
  std::string kind;
  std::string target;
  std::string datatype;
  std::string source;
};

struct BatchOutput {
  std::vector<std::string> targets;
  std::string source;
};

struct Settings {
  std::vector<BatchInput> inputs;
  std::vector<BatchOutput> outputs;

  // Looks for every member that a backend may want. Throws if one is missing.
  explicit Settings(const Json& config) {
    for (const Json& input : config.at("batch_input").items()) {
      for (const Json& target : input.at("target_name").items()) {
        inputs.push_back({
            input.at("kind").text(), target.text(), input.at("data_type").text(),
            input.at("source_input").items().at(0).text()});
      }
    }
    for (const Json& output : config.at("batch_output").items()) {
      if (output.at("kind").text() != "BATCH_SCATTER_WITH_INPUT_SHAPE") throw std::invalid_argument("kind of output");
      outputs.push_back({{}, output.at("source_input").items().at(0).text()});
      for (const Json& target : output.at("target_name").items()) outputs.back().targets.push_back(target.text());
    }
    for (const Json& input : config.at("input").items()) {
      (void)input.at("name").text();
      (void)input.at("optional").flag();
      (void)input.at("allow_ragged_batch").flag();
      for (const Json& dim : input.at("dims").items()) (void)dim.number();
    }
    (void)config.at("max_batch_size").number();
  }
};

int64_t ElementsOf(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  return elements;
}

// The values of a batch input, and its shape, of the shapes of its source in the requests, which begin with their rows.
std::vector<int64_t> Make(const std::string& kind, const std::vector<Shape>& sources, Shape* shape) {
  std::vector<int64_t> values;
  int64_t total = 0;
  int64_t most = 0;
  int64_t rows = 0;
  if (kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO") values.push_back(0);
  for (const Shape& source : sources) {
    const int64_t elements = ElementsOf(source);
    total += elements;
    most = std::max(most, elements);
    rows += source[0];
    if (kind == "BATCH_ELEMENT_COUNT") {
      values.push_back(elements);
    } else if (kind == "BATCH_ACCUMULATED_ELEMENT_COUNT" || kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO") {
      values.push_back(total);
    } else if (kind == "BATCH_ITEM_SHAPE" || kind == "BATCH_ITEM_SHAPE_FLATTEN") {
      for (int64_t row = 0; row < source[0]; ++row) values.insert(values.end(), source.begin() + 1, source.end());
    }
  }
  if (kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE") {
    *shape = {most};
  } else if (kind == "BATCH_ITEM_SHAPE") {
    *shape = {rows, static_cast<int64_t>(sources[0].size()) - 1};
  } else {
    *shape = {static_cast<int64_t>(values.size())};
  }
  return values;
}

std::string Join(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

// One request of a batch.
struct Part {
  TRITONBACKEND_Request* request = nullptr;
  TRITONBACKEND_Response* response = nullptr;
};

TRITONSERVER_Error* Describe(const Settings& settings, const std::vector<Part>& parts, std::string* text) {
  for (const BatchInput& input : settings.inputs) {
    std::vector<Shape> sources;
    for (const Part& part : parts) {
      Tensor tensor;
      RETURN_IF_ERROR(testing::ReadInput(part.request, input.source.c_str(), &tensor));
      sources.push_back(tensor.shape);
    }
    Shape shape;
    const std::vector<int64_t> values = Make(input.kind, sources, &shape);
    *text += input.target + ": " + input.datatype + " [" + Join(shape) + "] " + Join(values) + "; ";
  }
  return nullptr;
}

// Makes the outputs of the whole batch in one piece, and gives each request its part, with the shape of its source.
TRITONSERVER_Error* Scatter(const BatchOutput& output, std::vector<Part>* parts) {
  std::vector<float> batch;
  std::vector<Shape> shapes;
  for (const Part& part : *parts) {
    Tensor tensor;
    RETURN_IF_ERROR(testing::ReadInput(part.request, output.source.c_str(), &tensor));
    batch.insert(batch.end(), tensor.as<float>(), tensor.as<float>() + tensor.count<float>());
    shapes.push_back(tensor.shape);
  }
  for (float& element : batch) element *= 2;
  size_t start = 0;
  for (size_t index = 0; index < parts->size(); ++index) {
    const auto elements = static_cast<size_t>(ElementsOf(shapes[index]));
    for (const std::string& target : output.targets) {
      RETURN_IF_ERROR(testing::WriteOutput(
          (*parts)[index].response, target.c_str(), TRITONSERVER_TYPE_FP32, shapes[index], batch.data() + start,
          elements * sizeof(float)));
    }
    start += elements;
  }
  return nullptr;
}

TRITONSERVER_Error* Answer(const Settings& settings, std::vector<Part>* parts) {
  std::string text;
  RETURN_IF_ERROR(Describe(settings, *parts, &text));
  const auto size = static_cast<uint32_t>(text.size());
  const std::string element = std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
  for (Part& part : *parts) {
    RETURN_IF_ERROR(testing::WriteOutput(
        part.response, "SHAPES", TRITONSERVER_TYPE_BYTES, {1, 1}, element.data(), element.size()));
  }
  for (const BatchOutput& output : settings.outputs) RETURN_IF_ERROR(Scatter(output, parts));
  return nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  try {
    auto settings = std::make_unique<Settings>(Json::Parse(testing::Config(model).json()));
    RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, settings.get()));
    settings.release();
    return nullptr;
  } catch (const std::exception& exc) {
    return Fail(exc.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Settings> settings(StateOf<Settings>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  std::vector<Part> parts(count);
  for (uint32_t index = 0; index < count; ++index) {
    parts[index].request = requests[index];
    Must(TRITONBACKEND_ResponseNew(&parts[index].response, requests[index]));
  }
  const Error error(Answer(*StateOf<Settings>(testing::ModelOf(instance)), &parts));
  for (Part& part : parts) {
    Must(TRITONBACKEND_ResponseSend(part.response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
    Must(TRITONBACKEND_RequestRelease(part.request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return nullptr;
}

}  // extern "C"
