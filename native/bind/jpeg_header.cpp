#include <cstdio>  // jpeglib.h needs it

#include <jpeglib.h>
#include <nanobind/stl/string.h>

#include "bind/module.h"
#include "jpeg/header.h"

namespace nb = nanobind;

namespace fastload {
namespace {

#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)

nb::tuple sampling(const JpegHeader& header) {
    nb::list factors;
    for (size_t i = 0; i < header.n_components; ++i)
        factors.append(nb::make_tuple(header.components[i].h, header.components[i].v));
    return nb::tuple(factors);
}

nb::tuple jpeg_header(nb::handle data) {
    Bytes bytes(data);
    JpegHeader header;
    {
        Unlocked unlocked;
        header = read_jpeg_header(bytes.data(), bytes.size());
    }
    return nb::make_tuple(header.width, header.height, header.precision, header.sof,
                          sampling(header), header.orientation, header.restart_interval,
                          header.n_scans, header.complete, header.adobe_transform, header.jfif,
                          header.scan_offset, header.end_offset);
}

}  // namespace

void bind_jpeg(nb::module_& module) {
    nb::exception<BadJpeg>(module, "BadJpeg", PyExc_ValueError);
    module.attr("libjpeg_turbo_version") = FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION);
    module.def("jpeg_header", &jpeg_header, nb::arg("data"));
}

}  // namespace fastload
