// The Python module fastload._core. Its types are written down in fastload/_core.pyi.
#include "bind.h"

#include "cpu.h"
#include "crc32c.h"

namespace nb = nanobind;
using namespace fastload;

NB_MODULE(_core, module) {
    module.def("simd_level", &simd_level);
    module.def("set_avx2", &set_avx2, nb::arg("wanted"));
    module.def(
        "crc32c",
        [](nb::handle data, uint32_t crc) {
            Bytes bytes(data);
            nb::gil_scoped_release unlocked;
            return crc32c(crc, bytes.data(), bytes.size());
        },
        nb::arg("data"), nb::arg("crc") = 0);
    bind_jpeg(module);
    bind_decode(module);
    bind_pack(module);
    bind_record(module);
    bind_transform(module);
}
