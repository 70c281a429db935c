#include <cstdio>  // jpeglib.h needs it

#include <jpeglib.h>
#include <nanobind/stl/string.h>

#include "bind/module.h"
#include "bind/python_support.h"
#include "jpeg/header.h"

namespace nb = nanobind;

namespace fastload {
namespace {

#define FASTLOAD_TEXT_(x) #x
#define FASTLOAD_TEXT(x) FASTLOAD_TEXT_(x)

// Returns the sampling factors (h, v) of each component.
nb::tuple sampling(const JpegHeader& header) {
    nb::list factors;
    for (size_t i = 0; i < header.n_components; ++i)
        factors.append(nb::make_tuple(header.components[i].h, header.components[i].v));
    return nb::tuple(factors);
}

JpegHeader jpeg_header(nb::handle data) {
    BufferView bytes(data);
    GilRelease released;
    return read_jpeg_header(bytes.data(), bytes.size());
}

}  // namespace

void bind_jpeg_header(nb::module_& module) {
    nb::exception<BadJpeg>(module, "BadJpeg", PyExc_ValueError);
    module.attr("libjpeg_turbo_version") = FASTLOAD_TEXT(LIBJPEG_TURBO_VERSION);
    nb::class_<JpegHeader>(module, "JpegHeader")
        .def_ro("width", &JpegHeader::width)
        .def_ro("height", &JpegHeader::height)
        .def_ro("precision", &JpegHeader::precision)
        .def_ro("sof", &JpegHeader::sof)
        .def_prop_ro("sampling", &sampling)
        .def_ro("orientation", &JpegHeader::orientation)
        .def_ro("restart_interval", &JpegHeader::restart_interval)
        .def_ro("n_scans", &JpegHeader::n_scans)
        .def_ro("complete", &JpegHeader::complete)
        .def_ro("adobe_transform", &JpegHeader::adobe_transform)
        .def_ro("jfif", &JpegHeader::jfif)
        .def_ro("scan_offset", &JpegHeader::scan_offset)
        .def_ro("end_offset", &JpegHeader::end_offset);
    module.def("jpeg_header", &jpeg_header, nb::arg("data"));
}

}  // namespace fastload
