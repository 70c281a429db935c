// What pack does for every image, each in one call: Python holds its lock for microseconds in
// between, so threads do not wait for each other. All of these answer None where anything is out of
// the ordinary; the slower Python path then does the work, or says what is wrong.
#include <fcntl.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bind/module.h"
#include "pack/regular_file.h"
#include "shard/crc32c.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// The bytes of a regular file; the path, absolute, must have no link in it.
nb::object read_regular_file(const nb::bytes& path, size_t limit) {
    if (std::strlen(path.c_str()) != path.size() || path.c_str()[0] != '/') return nb::none();
    PlainFile file;
    bool good;
    {
        Unlocked unlocked;
        good = file.open(path.c_str(), limit);
    }
    if (!good) return nb::none();
    nb::object data = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(file.size())));
    if (!data.is_valid()) throw nb::python_error();
    {
        Unlocked unlocked;
        good = file.read(PyBytes_AS_STRING(data.ptr()));
    }
    return good ? data : nb::none();
}

// A row of the part table (docs/FORMAT.md) and the data it stands for.
struct Part {
    std::unique_ptr<Bytes> data;
    uint64_t key = 0;
    uint8_t row[24] = {};
};

template <typename T>
void put(uint8_t* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

constexpr size_t kHeader = 24, kRow = 24, kMaxRecord = size_t(64) << 20, kMaxParts = 1024;

// False where a number does not fit: fastload/_store/record.py says which.
bool take(nb::handle tuple, Part& part) {
    // field, (data), item, codec, role, channels, bits, width, height, interval, orientation
    static constexpr long kMost[11] = {0xFFFF, 0,      0xFFFF, 5,      1, 255,
                                       255,    0xFFFF, 0xFFFF, 0xFFFF, 8};
    static constexpr int kPlace[11] = {0, -1, 2, 4, 5, 6, 7, 16, 18, 20, 22};
    if (!PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != 11) return false;
    long values[11] = {};
    for (int i = 0; i < 11; ++i) {
        PyObject* item = PyTuple_GET_ITEM(tuple.ptr(), i);
        if (i == 1) continue;
        if (!PyLong_CheckExact(item)) return false;
        int overflow = 0;
        values[i] = PyLong_AsLongAndOverflow(item, &overflow);
        if (overflow || values[i] < 0 || values[i] > kMost[i]) return false;
        if (kMost[i] > 255)
            put(part.row + kPlace[i], uint16_t(values[i]));
        else
            part.row[kPlace[i]] = uint8_t(values[i]);
    }
    part.data = std::make_unique<Bytes>(PyTuple_GET_ITEM(tuple.ptr(), 1));
    part.key = uint64_t(values[0]) << 24 | uint64_t(values[2]) << 8 | uint64_t(values[4]);
    return true;
}

// Same bytes as encode_record() in fastload/_store/record.py.
nb::object encode_record(uint64_t sample_id, nb::sequence given) {
    std::vector<Part> parts(nb::len(given));
    if (parts.size() > kMaxParts || sample_id >> 63) return nb::none();
    for (size_t i = 0; i < parts.size(); ++i)
        if (!take(given[i], parts[i])) return nb::none();
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.key < b.key; });
    size_t end = kHeader + kRow * parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i && parts[i].key == parts[i - 1].key) return nb::none();
        end = (end + 7) / 8 * 8;
        put(parts[i].row + 8, uint32_t(end));
        put(parts[i].row + 12, uint32_t(parts[i].data->size()));
        end += parts[i].data->size();
        if (end > kMaxRecord) return nb::none();
    }
    nb::object record = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(end)));
    if (!record.is_valid()) throw nb::python_error();
    auto* bytes = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(record.ptr()));
    std::memcpy(bytes, "FLR1\0\0\0\0\1\0", 10);
    put(bytes + 10, uint16_t(parts.size()));
    put(bytes + 12, uint32_t(end));
    put(bytes + 16, sample_id);
    uint8_t* at = bytes + kHeader + kRow * parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
        std::memcpy(bytes + kHeader + kRow * i, parts[i].row, kRow);
        while ((at - bytes) % 8) *at++ = 0;
        std::memcpy(at, parts[i].data->data(), parts[i].data->size());
        at += parts[i].data->size();
    }
    put(bytes + 4, crc32c(0, bytes + 8, end - 8));
    return record;
}

// Asks the system to begin writing what it holds back of a file; false where it cannot be asked. A
// sync at the end then has little left to do.
bool start_writeback(int descriptor) {
#ifdef SYNC_FILE_RANGE_WRITE
    Unlocked unlocked;
    return sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE) == 0;
#else
    return descriptor < 0;
#endif
}

// A pack frees and takes the same tens of megabytes again and again: without this, glibc hands them
// back to the system each time, and every page is cleared and mapped anew. Returns whether the
// allocator could be told.
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
