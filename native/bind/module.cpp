// The Python module fastload._core. Its types are written down in fastload/_core.pyi.
#include "bind/module.h"
#include "bind/python_support.h"

#include <nanobind/stl/string_view.h>

#include "cpu/simd.h"
#include "shard/crc32c.h"

namespace nb = nanobind;
using namespace fastload;

NB_MODULE(_core, module) {
    module.def("simd_level", &simd_level);
    module.def(
        "set_simd",
        [](std::string_view most) {
            if (most != "avx512" && most != "avx2" && most != "portable")
                throw nb::value_error("simd: expected avx512, avx2 or portable");
            set_simd(most == "avx512" ? Simd::kAvx512
                     : most == "avx2" ? Simd::kAvx2
                                      : Simd::kPortable);
            return simd_level();
        },
        nb::arg("most"));
    module.def(
        "crc32c",
        [](nb::handle data, uint32_t crc) {
            BufferView bytes(data);
            GilRelease released;
            return crc32c(crc, bytes.data(), bytes.size());
        },
        nb::arg("data"), nb::arg("crc") = 0);
    bind_jpeg_header(module);
    bind_decode(module);
    bind_random(module);
    bind_pack(module);
    bind_records(module);
    bind_decode_requests(module);
    bind_ticket(module);
    bind_pool(module);
    bind_rewrite(module);
    bind_warp(module);
}
