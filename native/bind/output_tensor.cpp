#include "bind/output_tensor.h"

#include <algorithm>
#include <cmath>

#include "bind/python_support.h"

namespace nb = nanobind;

namespace fastload {
namespace {

Dtype dtype_of(const Tensor& tensor) {
    if (tensor.dtype() == nb::dtype<uint8_t>()) return Dtype::kUint8;
    if (tensor.dtype() == nb::dtype<uint16_t>()) return Dtype::kUint16;
    if (tensor.dtype() == nb::dtype<float>()) return Dtype::kFloat32;
    const auto dtype = tensor.dtype();
    if (dtype.bits == 16 && dtype.lanes == 1 &&
        dtype.code == uint8_t(nb::dlpack::dtype_code::Float))
        return Dtype::kFloat16;
    if (dtype.bits == 16 && dtype.lanes == 1 &&
        dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat))
        return Dtype::kBfloat16;
    throw_value_error("output: expected dtype uint8, uint16, float32, float16 or bfloat16");
}

// Rejects overlapping items, which two threads could write at the same time. Each stride must
// exceed the extent of all axes with smaller strides.
void check_no_overlap(const Tensor& tensor) {
    std::vector<std::pair<int64_t, int64_t>> axes;  // stride, size
    if (!tensor.size()) return;
    for (size_t i = 0; i < tensor.ndim(); ++i)
        if (tensor.shape(i) > 1)
            axes.emplace_back(std::abs(tensor.stride(i)), int64_t(tensor.shape(i)));
    std::sort(axes.begin(), axes.end());
    int64_t reach = 0;
    for (auto [stride, size] : axes) {
        if (stride <= reach)
            throw_value_error("output: items overlap in memory. Pass a contiguous tensor.");
        reach += stride * (size - 1);
    }
}

BatchOutput describe(const Tensor& tensor, const OutputOptions& options) {
    const int device = tensor.device_type();
    if (device != nb::device::cpu::value && device != nb::device::cuda_host::value)
        throw_value_error("output: expected a tensor in host memory");
    if (tensor.ndim() != 4)
        throw_value_error("output: expected 4 axes (", options.planar ? "N, C, H, W" : "N, H, W, C",
                          "), found ", tensor.ndim());
    check_no_overlap(tensor);
    const size_t c = options.planar ? 1 : 3, y = options.planar ? 2 : 1, x = options.planar ? 3 : 2;
    BatchOutput output;
    output.dtype = dtype_of(tensor);
    const ptrdiff_t item = ptrdiff_t(output.item_size());
    output.memory = static_cast<uint8_t*>(tensor.data());
    output.slots = int64_t(tensor.shape(0));
    output.height = int64_t(tensor.shape(y));
    output.width = int64_t(tensor.shape(x));
    output.channels = int(std::min<size_t>(tensor.shape(c), 1000));
    output.slot_stride = ptrdiff_t(tensor.stride(0)) * item;
    output.row_stride = ptrdiff_t(tensor.stride(y)) * item;
    output.pixel_stride = ptrdiff_t(tensor.stride(x)) * item;
    output.channel_stride = ptrdiff_t(tensor.stride(c)) * item;
    if (options.color < 0 || options.color > int(Color::kStored))
        throw_value_error("color: expected a code from 0 to ", int(Color::kStored), ", found ",
                          options.color);
    output.color = Color(options.color);
    const int max_channels = output.color == Color::kStored ? kMaxChannels
                             : output.color == Color::kGray ? 1
                                                            : 3;
    const int min_channels = output.color == Color::kStored ? 1 : max_channels;
    if (output.channels < min_channels || output.channels > max_channels)
        throw_value_error(
            "output: expected ", min_channels,
            min_channels < max_channels ? " to " + std::to_string(max_channels) : std::string(),
            " channels for this color, found ", output.channels);
    return output;
}

void set_fill_and_normalization(BatchOutput& output, const OutputOptions& options) {
    const size_t n = size_t(output.channels);
    if (options.fill.size() != n)
        throw_value_error("fill: expected ", n, " values, found ", options.fill.size());
    if ((options.bits != 8 && options.bits != 16) ||
        (output.dtype == Dtype::kUint8 && options.bits != 8) ||
        (output.dtype == Dtype::kUint16 && options.bits != 16))
        throw_value_error("bits: expected 8 or 16, as in the dtype of the output, found ",
                          options.bits);
    output.bits = options.bits;
    const int white = output.bits == 16 ? 65535 : 255;
    for (size_t i = 0; i < n; ++i) {
        if (options.fill[i] < 0 || options.fill[i] > white)
            throw_value_error("fill: expected values from 0 to ", white, ", found ",
                              options.fill[i]);
        output.fill[i] = uint16_t(options.fill[i]);
    }
    if (output.dtype == Dtype::kUint8) return;
    if (options.mean.size() != n || options.std.size() != n)
        throw_value_error("mean, std: expected ", n, " values each, found ", options.mean.size(),
                          " and ", options.std.size());
    for (size_t i = 0; i < n; ++i) {
        output.mean[i] = options.mean[i];
        output.std[i] = options.std[i];
        if (!std::isfinite(output.mean[i]) || !std::isfinite(output.std[i]) || output.std[i] == 0)
            throw_value_error("mean, std: expected finite values and a nonzero std, found mean ",
                              output.mean[i], ", std ", output.std[i], " in channel ", i);
    }
}

}  // namespace

BatchOutput make_batch_output(const Tensor& tensor, const OutputOptions& options) {
    BatchOutput output = describe(tensor, options);
    set_fill_and_normalization(output, options);
    return output;
}

}  // namespace fastload
