// Where a batch goes, as Python says it: a tensor and what is to be written into it, checked.
#pragma once

#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "pixels/row_writer.h"

namespace fastload {

using Tensor = nanobind::ndarray<>;

template <typename... Parts>
[[noreturn]] void wrong(const Parts&... parts) {
    std::string message;
    (message.append(parts), ...);
    throw nanobind::value_error(message.c_str());
}

inline std::string text(int64_t number) {
    return std::to_string(number);
}

struct OutputOptions {
    bool planar;
    int colour;
    std::vector<int> fill;
    std::vector<float> mean, std;
};

// Throws ValueError for a tensor that nothing can be written into like this.
Output output_of(const Tensor& tensor, const OutputOptions& options);

}  // namespace fastload
