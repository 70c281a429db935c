#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "bind/module.h"
#include "bind/python_support.h"
#include "jpeg/decoder.h"
#include "jpeg/entropy_hook.h"
#include "jpeg/header.h"
#include "pool/decode_request.h"

namespace nb = nanobind;

namespace fastload {
namespace {

struct PixelRegion {
    int x0, y0, x1, y1;
};

// Decodes a region into `rows`. Returns the error, empty on success.
std::string decode_rows(JpegDecoder& decoder, const BufferView& bytes, int denominator,
                        const PixelRegion& region, bool gray, bool libjpeg_only,
                        std::vector<uint8_t>& rows) {
    if (!decoder.open(bytes.data(), bytes.size())) return decoder.error();
    if (denominator < 1 || denominator > 8 || (denominator & (denominator - 1)) || region.x0 < 0 ||
        region.y0 < 0 || region.x0 >= region.x1 || region.y0 >= region.y1 ||
        region.x1 > (decoder.width() + denominator - 1) / denominator ||
        region.y1 > (decoder.height() + denominator - 1) / denominator)
        return "region is outside the image";
    const auto pixels =
        gray || decoder.gray() ? JpegDecoder::Pixels::kGray : JpegDecoder::Pixels::kRgb;
    if (!decoder.start(denominator, pixels, region.x0, region.x1, region.y0, libjpeg_only))
        return decoder.error();
    const size_t stride = size_t(decoder.columns()) * size_t(decoder.channels());
    rows.resize(stride * size_t(region.y1 - region.y0));
    return decoder.read(rows.data(), ptrdiff_t(stride), region.y1 - region.y0) && decoder.finish()
               ? ""
               : decoder.error();
}

// Decodes the pixels [x0, x1) x [y0, y1) of a JPEG at 1/denominator. Gives tests direct access to
// JpegDecoder.
nb::object decode_region(nb::handle data, int denominator, int x0, int y0, int x1, int y1,
                         bool gray) {
    BufferView bytes(data);
    JpegDecoder decoder;
    std::vector<uint8_t> rows;
    const PixelRegion region{x0, y0, x1, y1};
    std::string error;
    {
        GilRelease released;
        error = decode_rows(decoder, bytes, denominator, region, gray, false, rows);
        if (!error.empty() && decoder.used_hook())
            error = decode_rows(decoder, bytes, denominator, region, gray, true, rows);
    }
    if (!error.empty()) throw BadJpeg(error);
    const size_t height = size_t(y1 - y0), width = size_t(x1 - x0),
                 channels = size_t(decoder.channels());
    const size_t stride = size_t(decoder.columns()) * channels,
                 skip = size_t(decoder.left()) * channels;
    auto* pixels = new uint8_t[height * width * channels];
    for (size_t y = 0; y < height; ++y)
        std::memcpy(pixels + y * width * channels, rows.data() + y * stride + skip,
                    width * channels);
    nb::capsule owner(pixels,
                      [](void* memory) noexcept { delete[] static_cast<uint8_t*>(memory); });
    return nb::cast(
        nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>(pixels, {height, width, channels}, owner));
}

// Returns the name, offset and size of each member of a request. A test compares them with the
// NumPy dtype in fastload/_decode/backend.py.
nb::list request_members() {
    nb::list members;
#define MEMBER(name) \
    members.append(  \
        nb::make_tuple(#name, offsetof(DecodeRequest, name), sizeof(DecodeRequest::name)))
    MEMBER(offset), MEMBER(size), MEMBER(index_offset), MEMBER(index_count), MEMBER(interval),
        MEMBER(source), MEMBER(x), MEMBER(y), MEMBER(w), MEMBER(h), MEMBER(out_w), MEMBER(out_h),
        MEMBER(pad_left), MEMBER(pad_top), MEMBER(raw_w), MEMBER(raw_h), MEMBER(codec),
        MEMBER(raw_channels), MEMBER(raw_bits), MEMBER(orientation), MEMBER(flip), MEMBER(filter),
        MEMBER(exact), MEMBER(check);
#undef MEMBER
    return members;
}

}  // namespace

void bind_decode(nb::module_& module) {
    module.def("decode_region", &decode_region, nb::arg("data"), nb::arg("denominator"),
               nb::arg("x0"), nb::arg("y0"), nb::arg("x1"), nb::arg("y1"), nb::kw_only(),
               nb::arg("grayscale") = false);
    module.def("set_entropy_hook", &set_entropy_hook, nb::arg("enabled"));
    module.def("request_members", &request_members);
    module.attr("request_size") = sizeof(DecodeRequest);
}

}  // namespace fastload
