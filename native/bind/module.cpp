// The Python module fastload._core. fastload/_core.pyi declares its types.
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
        [](std::string_view max_level) {
            if (max_level != "avx512" && max_level != "avx2" && max_level != "portable")
                throw_value_error("max_level: expected 'avx512', 'avx2' or 'portable', found '",
                                  std::string(max_level), "'");
            set_simd(max_level == "avx512" ? Simd::kAvx512
                     : max_level == "avx2" ? Simd::kAvx2
                                           : Simd::kPortable);
            return simd_level();
        },
        nb::arg("max_level"));
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
    bind_verify(module);
    bind_warp(module);
}
