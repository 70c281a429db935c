// Describes the output of a batch, from a tensor and the arguments of Pool.submit.
#pragma once

#include <nanobind/ndarray.h>

#include <vector>

#include "pixels/output.h"

namespace fastload {

using Tensor = nanobind::ndarray<>;

struct OutputOptions {
    bool planar;
    int color;
    std::vector<int> fill;
    std::vector<float> mean, std;
    int bits;
};

// Throws ValueError if the tensor does not match the options.
BatchOutput make_batch_output(const Tensor& tensor, const OutputOptions& options);

}  // namespace fastload
