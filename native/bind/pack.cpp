// The per-image work of `fastload pack`, one call per step. Python holds the GIL only for
// microseconds between the calls, so the packing threads do not wait for each other. Every function
// returns None for an unusual input. The slower Python path then does the work or reports the
// error.
#include <fcntl.h>
#include <malloc.h>

#include <cstring>
#include <memory>
#include <vector>

#include "bind/module.h"
#include "bind/python_support.h"
#include "pack/regular_file.h"
#include "shard/record.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// Returns the bytes of a regular file. The path must be absolute and must not contain a symbolic
// link.
nb::object read_regular_file(const nb::bytes& path, size_t limit) {
    if (std::strlen(path.c_str()) != path.size() || path.c_str()[0] != '/') return nb::none();
    RegularFile file;
    bool good;
    {
        GilRelease released;
        good = file.open(path.c_str(), limit);
    }
    if (!good) return nb::none();
    nb::object data = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(file.size())));
    if (!data.is_valid()) throw nb::python_error();
    {
        GilRelease released;
        good = file.read(PyBytes_AS_STRING(data.ptr()));
    }
    return good ? data : nb::none();
}

// Converts a fastload._store.record.Part: field, data, item, codec, role, channels, bits, width,
// height, interval, orientation. Returns false if a number is out of range. The caller then reports
// which one.
bool parse_part(nb::handle tuple, NewPart& part, std::unique_ptr<BufferView>& data) {
    constexpr int kPartFields = 11, kData = 1;
    static constexpr long kMaxValue[kPartFields] = {0xFFFF, 0,      0xFFFF, 5,      1, 255,
                                                    255,    0xFFFF, 0xFFFF, 0xFFFF, 8};
    if (!PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != kPartFields) return false;
    long values[kPartFields] = {};
    for (int i = 0; i < kPartFields; ++i) {
        if (i == kData) continue;
        PyObject* item = PyTuple_GET_ITEM(tuple.ptr(), i);
        if (!PyLong_CheckExact(item)) return false;
        int overflow = 0;
        values[i] = PyLong_AsLongAndOverflow(item, &overflow);
        if (overflow || values[i] < 0 || values[i] > kMaxValue[i]) return false;
    }
    part.row.field = uint16_t(values[0]);
    part.row.item = uint16_t(values[2]);
    part.row.codec = uint8_t(values[3]);
    part.row.role = uint8_t(values[4]);
    part.row.channels = uint8_t(values[5]);
    part.row.bits = uint8_t(values[6]);
    part.row.width = uint16_t(values[7]);
    part.row.height = uint16_t(values[8]);
    part.row.interval = uint16_t(values[9]);
    part.row.orientation = uint8_t(values[10]);
    data = std::make_unique<BufferView>(PyTuple_GET_ITEM(tuple.ptr(), kData));
    part.data = data->data();
    part.size = data->size();
    return true;
}

// Writes the same bytes as encode_record() in fastload/_store/record.py.
nb::object encode_record(uint64_t sample_id, nb::sequence given) {
    std::vector<NewPart> parts(nb::len(given));
    std::vector<std::unique_ptr<BufferView>> data(parts.size());
    if (parts.size() > kMaxParts || sample_id >> 63) return nb::none();
    for (size_t i = 0; i < parts.size(); ++i)
        if (!parse_part(given[i], parts[i], data[i])) return nb::none();
    const size_t size = place_parts(parts);
    if (!size) return nb::none();
    nb::object record = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size)));
    if (!record.is_valid()) throw nb::python_error();
    write_record(sample_id, parts, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(record.ptr())),
                 size);
    return record;
}

// Starts writing the dirty pages of a file to disk, so that a later fsync has little left to write.
// Returns false if the system does not support it.
bool start_writeback(int descriptor) {
#ifdef SYNC_FILE_RANGE_WRITE
    GilRelease released;
    return sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE) == 0;
#else
    return descriptor < 0;
#endif
}

// Makes malloc keep freed memory. Packing frees and allocates the same tens of megabytes
// repeatedly. By default, glibc returns them to the system each time, and the kernel then clears
// and maps every page again. Returns false if the allocator has no such setting.
bool keep_freed_memory(int n_bytes) {
#ifdef M_TRIM_THRESHOLD
    return mallopt(M_MMAP_THRESHOLD, n_bytes / 8) && mallopt(M_TRIM_THRESHOLD, n_bytes);
#else
    return n_bytes < 0;
#endif
}

}  // namespace

void bind_pack(nb::module_& module) {
    module.def("read_regular_file", &read_regular_file, nb::arg("path"), nb::arg("limit"));
    module.def("encode_record", &encode_record, nb::arg("sample_id"), nb::arg("parts"));
    module.def("start_writeback", &start_writeback, nb::arg("descriptor"));
    module.def("keep_freed_memory", &keep_freed_memory, nb::arg("n_bytes"));
}

}  // namespace fastload
