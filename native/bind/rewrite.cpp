#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/module.h"
#include "bind/python_support.h"
#include "jpeg/cut.h"
#include "jpeg/image_limits.h"
#include "jpeg/layout.h"
#include "jpeg/rewrite.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// Returns a NumPy array that owns a copy of the values.
nb::object as_array(const std::vector<uint32_t>& values) {
    auto* copy = new uint32_t[values.size() + 1];
    std::memcpy(copy, values.data(), values.size() * sizeof(uint32_t));
    nb::capsule owner(copy, [](void* memory) noexcept { delete[] static_cast<uint32_t*>(memory); });
    return nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(copy, {values.size()}, owner));
}

// Returns a memoryview that owns the bytes.
nb::object as_view(std::vector<uint8_t>&& bytes) {
    auto* owned = new std::vector<uint8_t>(std::move(bytes));
    nb::capsule owner(
        owned, [](void* memory) noexcept { delete static_cast<std::vector<uint8_t>*>(memory); });
    const nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> array(owned->data(), {owned->size()},
                                                                   owner);
    return nb::steal(PyMemoryView_FromObject(nb::cast(array).ptr()));
}

// A rewritten JPEG that does not depend on the rewriter of this thread.
struct OwnedRewrite {
    nb::object jpeg;
    std::vector<uint32_t> index;
    std::string warning;
    uint32_t width, height, n_components, interval, orientation;

    OwnedRewrite(const RewrittenJpeg& result, nb::object bytes)
        : jpeg(std::move(bytes)),
          index(result.index),
          warning(result.warning),
          width(result.width),
          height(result.height),
          n_components(result.n_components),
          interval(result.interval),
          orientation(result.orientation) {}
};

OwnedRewrite rewrite(nb::handle data, int restart, bool orient, bool optimize, bool keep_tables,
                     bool fast) {
    if (restart < -1 || restart > 65535)
        throw_value_error("restart: expected -1 (automatic), 0 (none) or 1 to 65535 MCUs, found ",
                          restart);
    BufferView bytes(data);
    const RewrittenJpeg* result;
    {
        GilRelease released;
        result = &rewrite_jpeg(bytes.data(), bytes.size(),
                               {restart, orient, optimize, keep_tables, fast});
    }
    return OwnedRewrite(*result, as_bytes(result->bytes, result->size));
}

// Rewrites several JPEGs. The result for a damaged or unusual one is None; the caller's slower path
// then reports the error.
nb::list rewrite_common(nb::sequence data, int restart) {
    std::vector<std::unique_ptr<BufferView>> views;
    std::vector<JpegBytes> jpegs;
    for (nb::handle each : data) {
        views.push_back(std::make_unique<BufferView>(each));
        jpegs.push_back({views.back()->data(), views.back()->size()});
    }
    struct Copy {
        RewrittenJpeg result;
        std::vector<uint8_t> bytes;
    };
    std::vector<std::optional<Copy>> copies(jpegs.size());
    RewriteOptions options;
    options.restart = restart;
    {
        GilRelease released;
        rewrite_jpegs(jpegs, options, [&](size_t number, const RewrittenJpeg* result) {
            if (!result || !result->common) return;
            Copy& copy = copies[number].emplace();
            copy.result = *result;
            copy.bytes.assign(result->bytes, result->bytes + result->size);
        });
    }
    nb::list results;
    for (std::optional<Copy>& copy : copies) {
        if (copy)
            results.append(OwnedRewrite(copy->result, as_view(std::move(copy->bytes))));
        else
            results.append(nb::none());
        copy.reset();
    }
    return results;
}

nb::tuple segments(nb::handle data) {
    BufferView bytes(data);
    JpegLayout layout;
    std::vector<uint32_t> found;
    {
        GilRelease released;
        if (!read_layout(bytes.data(), bytes.size(), layout) || !layout.interval ||
            !find_segments(bytes.data(), bytes.size(), layout, found))
            layout.interval = 0;
    }
    return nb::make_tuple(as_array(found), layout.interval);
}

// A part of a JPEG, and the position of its first pixel in the whole image.
struct CutJpeg {
    nb::bytes jpeg;
    uint32_t x0, y0;
};

CutJpeg cut(nb::handle data, nb::handle index, uint32_t interval, uint32_t x, uint32_t y,
            uint32_t w, uint32_t h, uint32_t scale) {
    if (scale != 1 && scale != 2 && scale != 4 && scale != 8)
        throw_value_error("scale: expected 1, 2, 4 or 8, found ", scale);
    BufferView bytes(data), entries(index);
    std::vector<uint8_t> out;
    uint32_t x0 = 0, y0 = 0;
    bool cut;
    {
        GilRelease released;
        out.reserve(bytes.size());
        cut = cut_jpeg(bytes.data(), bytes.size(), entries.data(), entries.size() / 4, interval,
                       {x, y, w, h}, scale, out, x0, y0);
    }
    if (!cut) return {as_bytes(bytes.data(), bytes.size()), 0, 0};
    return {as_bytes(out), x0, y0};
}

}  // namespace

void bind_rewrite(nb::module_& module) {
    module.attr("MAX_SIDE") = MAX_SIDE;
    module.attr("MAX_PIXELS") = MAX_PIXELS;
    module.attr("MAX_PIXELS_PER_BYTE") = MAX_PIXELS_PER_BYTE;
    module.attr("MAX_SCANS") = MAX_SCANS;
    nb::class_<OwnedRewrite>(module, "RewrittenJpeg")
        .def_ro("jpeg", &OwnedRewrite::jpeg)
        .def_prop_ro("index", [](const OwnedRewrite& self) { return as_array(self.index); })
        .def_prop_ro("index_bytes", [](const OwnedRewrite& self) { return as_bytes(self.index); })
        .def_ro("width", &OwnedRewrite::width)
        .def_ro("height", &OwnedRewrite::height)
        .def_ro("n_components", &OwnedRewrite::n_components)
        .def_ro("interval", &OwnedRewrite::interval)
        .def_ro("orientation", &OwnedRewrite::orientation)
        .def_ro("warning", &OwnedRewrite::warning);
    nb::class_<CutJpeg>(module, "CutJpeg")
        .def_ro("jpeg", &CutJpeg::jpeg)
        .def_ro("x0", &CutJpeg::x0)
        .def_ro("y0", &CutJpeg::y0);
    module.def("rewrite", &rewrite, nb::arg("data"), nb::kw_only(), nb::arg("restart") = -1,
               nb::arg("orient") = true, nb::arg("optimize") = true, nb::arg("keep_tables") = true,
               nb::arg("fast") = true);
    module.def("rewrite_common", &rewrite_common, nb::arg("data"), nb::arg("restart"));
    module.def("find_segments", &segments, nb::arg("data"));
    module.def("cut", &cut, nb::arg("data"), nb::arg("index"), nb::arg("interval"), nb::arg("x"),
               nb::arg("y"), nb::arg("w"), nb::arg("h"), nb::kw_only(), nb::arg("scale") = 1);
}

}  // namespace fastload
