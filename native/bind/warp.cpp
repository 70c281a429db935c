#include <nanobind/nanobind.h>

#include "bind/module.h"
#include "bind/python_support.h"
#include "pixels/warp.h"

namespace nb = nanobind;

namespace fastload {
namespace {

const float* floats(const BufferView& bytes, const char* name, size_t count) {
    if (bytes.size() != count * sizeof(float))
        throw_value_error(name, ": expected ", count, " float32, found ", bytes.size(), " bytes");
    return reinterpret_cast<const float*>(bytes.data());
}

void warp(nb::handle input, nb::handle output, nb::handle inverse, nb::handle fill, size_t channels,
          size_t height, size_t width) {
    const BufferView from(input), to(output, true), matrices(inverse), fill_values(fill);
    const size_t n = matrices.size() / (6 * sizeof(float)), count = n * channels * height * width;
    const float *pixels = floats(from, "input", count), *result = floats(to, "output", count);
    const float *maps = floats(matrices, "inverse", 6 * n),
                *fills = floats(fill_values, "fill", channels);
    GilRelease released;
    warp_affine({n, channels, height, width}, pixels, const_cast<float*>(result), maps, fills);
}

}  // namespace

void bind_warp(nb::module_& module) {
    module.def("warp_affine", &warp, nb::arg("input"), nb::arg("output"), nb::arg("inverse"),
               nb::arg("fill"), nb::kw_only(), nb::arg("channels"), nb::arg("height"),
               nb::arg("width"));
}

}  // namespace fastload
