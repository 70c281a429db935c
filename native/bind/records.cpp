#include "bind/records.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "bind/module.h"
#include "bind/python_support.h"
#include "shard/read_ahead.h"
#include "shard/record.h"

namespace nb = nanobind;

namespace fastload {
namespace {

using Int64Array = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct RecordScan {
    std::vector<RecordBytes> records;
    std::vector<PartRow> rows;
    std::vector<int64_t> starts;  // first row of each sample, then the number of rows
    std::vector<std::pair<size_t, std::string>> faults;
};

// Returns the number of rows per sample if every sample has the same fields, items and roles in the
// same order. Returns 0 otherwise.
size_t rows_per_sample(const RecordScan& found) {
    const size_t n = found.records.size(), each = n ? size_t(found.starts[1]) : 0;
    if (!found.faults.empty() || found.rows.size() != n * each) return 0;
    for (size_t i = each; i < found.rows.size(); ++i) {
        const PartRow &one = found.rows[i], &first = found.rows[i % each];
        if (size_t(found.starts[i / each]) != i - i % each || one.field != first.field ||
            one.item != first.item || one.role != first.role)
            return 0;
    }
    return each;
}

// Each record header is a cache miss. Prefetching it this many records ahead overlaps the misses.
constexpr size_t kPrefetchDistance = 8;

// Finds the records. Returns one error per record, empty if it was found.
std::vector<std::string> locate(const std::vector<const ShardMap*>& maps, const Int64Array& shards,
                                const Int64Array& ids, std::vector<RecordBytes>& records) {
    std::vector<std::string> faults(ids.size());
    records.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
        const size_t shard = size_t(shards(i));
        const ShardMap* map = shard < maps.size() ? maps[shard] : nullptr;
        if (map)
            records[i] = map->find(uint64_t(ids(i)), faults[i]);
        else
            faults[i] = "shard is not open";
    }
    return faults;
}

RecordScan scan_records(const std::vector<const ShardMap*>& maps, const Int64Array& shards,
                        const Int64Array& ids, bool check_crc) {
    RecordScan found;
    const size_t n = ids.size();
    std::vector<std::string> faults = locate(maps, shards, ids, found.records);
    found.rows.reserve(n * 4);
    found.starts.reserve(n + 1);
    found.starts.push_back(0);
    for (size_t i = 0; i < n; ++i) {
        if (i + kPrefetchDistance < n && found.records[i + kPrefetchDistance].bytes)
            __builtin_prefetch(found.records[i + kPrefetchDistance].bytes);
        const size_t before = found.rows.size();
        const RecordBytes& record = found.records[i];
        std::string& fault = faults[i];
        if (fault.empty())
            fault = read_part_rows(record, uint64_t(ids(i)), uint32_t(i), check_crc, found.rows);
        if (!fault.empty()) {
            found.rows.resize(before);
            found.faults.emplace_back(i, std::move(fault));
        }
        found.starts.push_back(int64_t(found.rows.size()));
    }
    return found;
}

// Exports the bytes of one record to a memoryview. `held` keeps the memory map alive.
struct RecordExport {
    RecordBytes record;
    nb::object held;

    static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
        static char nothing;
        const RecordBytes& record = nb::inst_ptr<RecordExport>(self)->record;
        char* bytes =
            record.bytes ? reinterpret_cast<char*>(const_cast<uint8_t*>(record.bytes)) : &nothing;
        return PyBuffer_FillInfo(view, self, bytes, Py_ssize_t(record.size), 1, flags);
    }
};

PyType_Slot record_export_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&RecordExport::get_buffer)}, {0, nullptr}};

nb::object as_memoryview(const RecordBytes& record, nb::object held) {
    return nb::steal(
        PyMemoryView_FromObject(nb::cast(RecordExport{record, std::move(held)}).ptr()));
}

nb::object record_at(const Records& records, Py_ssize_t place) {
    if (place < 0) place += Py_ssize_t(records.size());
    if (place < 0 || place >= Py_ssize_t(records.size()))
        throw nb::index_error("record index is out of range");
    return as_memoryview(records[size_t(place)], records.maps());
}

Records records_at(const Records& records, const nb::slice& which) {
    auto [first, stop, step, count] = which.compute(records.size());
    if (step != 1) throw nb::value_error("records: expected a slice with step 1");
    return records.part(size_t(first), count);
}

// Collects references to the maps of these samples only. They must be held while the GIL is
// released: another thread that opens the same shard at the same time may replace the map in the
// list and so drop the one being read.
nb::list hold_used_maps(const nb::list& maps, const Int64Array& shards) {
    std::vector<bool> wanted(maps.size());
    for (size_t i = 0; i < shards.size(); ++i)
        if (size_t(shards(i)) < wanted.size()) wanted[size_t(shards(i))] = true;
    nb::list found;
    for (size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i] && !maps[i].is_none()) found.append(maps[i]);
    return found;
}

// Converts the list of maps, indexed by shard. A shard that is not open gives null.
std::vector<const ShardMap*> open_maps(const nb::list& maps) {
    std::vector<const ShardMap*> open;
    for (nb::handle map : maps)
        open.push_back(map.is_none() ? nullptr : nb::cast<const ShardMap*>(map));
    return open;
}

// The result of read_records(). fastload/_load/records.py has the dtypes of rows and starts.
struct ReadRecords {
    nb::object records;
    nb::bytes rows;
    nb::bytes starts;
    size_t rows_per_sample;  // 0 unless every sample has the same fields, items and roles
    nb::dict faults;         // position in the batch -> error
};

ReadRecords read_records(nb::list maps, Int64Array shards, Int64Array ids, bool check_crc) {
    if (shards.size() != ids.size())
        throw nb::value_error("read_records: expected as many shards as ids");
    const std::vector<const ShardMap*> open = open_maps(maps);
    nb::list held = hold_used_maps(maps, shards);
    RecordScan found;
    size_t n_rows;
    {
        GilRelease released;
        found = scan_records(open, shards, ids, check_crc);
        n_rows = rows_per_sample(found);
    }
    nb::dict faults;
    for (auto& [place, fault] : found.faults) faults[nb::int_(place)] = nb::str(fault.c_str());
    return {nb::cast(Records(std::move(found.records), std::move(held))), as_bytes(found.rows),
            as_bytes(found.starts), n_rows, faults};
}

// Returns the address and size of each contiguous run of samples. Holds the maps like
// read_records().
nb::bytes record_runs(nb::list maps, Int64Array shards, Int64Array ids) {
    if (shards.size() != ids.size())
        throw nb::value_error("record_runs: expected as many shards as ids");
    const std::vector<const ShardMap*> open = open_maps(maps);
    const nb::list held = hold_used_maps(maps, shards);
    std::vector<ByteRun> runs;
    {
        GilRelease released;
        runs = find_runs(open, shards.data(), ids.data(), ids.size());
    }
    return as_bytes(runs);
}

void read_ahead(nb::handle runs) {
    const BufferView bytes(runs);
    if (bytes.size() % sizeof(ByteRun))
        throw nb::value_error("read_ahead: expected the bytes that record_runs returned");
    const ByteRun* first = reinterpret_cast<const ByteRun*>(bytes.data());
    GilRelease released;
    std::for_each(first, first + bytes.size() / sizeof(ByteRun), request_pages);
}

nb::object find_record(nb::handle_t<ShardMap> self, uint64_t id) {
    const ShardMap& map = *nb::inst_ptr<ShardMap>(self);
    std::string error;
    RecordBytes record;
    // May wait for the disk.
    {
        GilRelease released;
        record = map.find(id, error);
    }
    if (!record.bytes) throw nb::key_error(error.c_str());
    return as_memoryview(record, nb::borrow(self));
}

}  // namespace

void bind_records(nb::module_& module) {
    module.attr("part_row_size") = sizeof(PartRow);
    nb::class_<ShardMap>(module, "ShardMap")
        .def(nb::init<int, size_t>(), nb::arg("descriptor"), nb::arg("size"))
        .def_prop_ro("entries", &ShardMap::entries)
        .def("find", &find_record, nb::arg("id"));
    nb::class_<RecordExport>(module, "_RecordExport", nb::type_slots(record_export_slots));
    nb::class_<Records>(module, "Records")
        .def("__len__", &Records::size)
        .def("__getitem__", &record_at, nb::arg("place"))
        .def("__getitem__", &records_at, nb::arg("which"));
    nb::class_<ReadRecords>(module, "ReadRecords")
        .def_ro("records", &ReadRecords::records)
        .def_ro("rows", &ReadRecords::rows)
        .def_ro("starts", &ReadRecords::starts)
        .def_ro("rows_per_sample", &ReadRecords::rows_per_sample)
        .def_ro("faults", &ReadRecords::faults);
    module.def("record_runs", &record_runs, nb::arg("maps"), nb::arg("shards"), nb::arg("ids"));
    module.def("read_ahead", &read_ahead, nb::arg("runs"));
    module.def("read_records", &read_records, nb::arg("maps"), nb::arg("shards"), nb::arg("ids"),
               nb::arg("check_crc") = true);
}

}  // namespace fastload
