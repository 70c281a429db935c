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
    std::vector<int64_t> starts;  // the first row of each sample, and the end of the last
    std::vector<std::pair<size_t, std::string>> faults;
};

// Where every sample has rows of the same fields, items and roles, in the same order: how many;
// else 0.
size_t rows_alike(const RecordScan& found) {
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

constexpr size_t kAhead =
    8;  // heads of records asked of the memory before their turn: each is a cache miss of its own

// Where each record lies; and what is wrong with those that are nowhere.
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
            faults[i] = "its shard is not open";
    }
    return faults;
}

RecordScan find_all(const std::vector<const ShardMap*>& maps, const Int64Array& shards,
                    const Int64Array& ids, bool check_crc) {
    RecordScan found;
    const size_t n = ids.size();
    std::vector<std::string> faults = locate(maps, shards, ids, found.records);
    found.rows.reserve(n * 4);
    found.starts.reserve(n + 1);
    found.starts.push_back(0);
    for (size_t i = 0; i < n; ++i) {
        if (i + kAhead < n && found.records[i + kAhead].bytes)
            __builtin_prefetch(found.records[i + kAhead].bytes);
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

// The bytes of one record, for a memoryview: it keeps `held` alive, and by that the map that the
// bytes lie in.
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

nb::object viewed(const RecordBytes& record, nb::object held) {
    return nb::steal(
        PyMemoryView_FromObject(nb::cast(RecordExport{record, std::move(held)}).ptr()));
}

nb::object record_at(const Records& records, Py_ssize_t place) {
    if (place < 0) place += Py_ssize_t(records.size());
    if (place < 0 || place >= Py_ssize_t(records.size())) throw nb::index_error("no such record");
    return viewed(records[size_t(place)], records.maps());
}

Records records_at(const Records& records, const nb::slice& which) {
    auto [first, stop, step, count] = which.compute(records.size());
    if (step != 1) throw nb::value_error("records: only neighbors can be taken together");
    return records.part(size_t(first), count);
}

// The maps that these samples lie in, not those of all shards. Held before they are read without
// the GIL: another thread that opened the same shard at the same moment may put its own map into
// the list, and so let go of the one that is being read.
nb::list used(const nb::list& maps, const Int64Array& shards) {
    std::vector<bool> wanted(maps.size());
    for (size_t i = 0; i < shards.size(); ++i)
        if (size_t(shards(i)) < wanted.size()) wanted[size_t(shards(i))] = true;
    nb::list found;
    for (size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i] && !maps[i].is_none()) found.append(maps[i]);
    return found;
}

// The open maps, by shard: null where one is not.
std::vector<const ShardMap*> open_maps(const nb::list& maps) {
    std::vector<const ShardMap*> open;
    for (nb::handle map : maps)
        open.push_back(map.is_none() ? nullptr : nb::cast<const ShardMap*>(map));
    return open;
}

// What read_records() found. Rows and starts as bytes: fastload/_load/records.py has the dtypes.
struct ReadRecords {
    nb::object records;
    nb::bytes rows;
    nb::bytes starts;
    size_t rows_per_sample;  // where every sample has the same kinds of rows, else 0
    nb::dict faults;         // by place in the batch: what is throw_value_error
};

ReadRecords read_records(nb::list maps, Int64Array shards, Int64Array ids, bool check_crc) {
    if (shards.size() != ids.size())
        throw nb::value_error("read_records: expected a shard for each id");
    const std::vector<const ShardMap*> open = open_maps(maps);
    nb::list held = used(maps, shards);
    RecordScan found;
    size_t alike;
    {
        GilRelease released;
        found = find_all(open, shards, ids, check_crc);
        alike = rows_alike(found);
    }
    nb::dict faults;
    for (auto& [place, fault] : found.faults) faults[nb::int_(place)] = nb::str(fault.c_str());
    return {nb::cast(Records(std::move(found.records), std::move(held))), as_bytes(found.rows),
            as_bytes(found.starts), alike, faults};
}

// Where samples lie in memory: (address, bytes) of each run. Held as above.
nb::bytes record_runs(nb::list maps, Int64Array shards, Int64Array ids) {
    if (shards.size() != ids.size())
        throw nb::value_error("record_runs: expected a shard for each id");
    const std::vector<const ShardMap*> open = open_maps(maps);
    const nb::list held = used(maps, shards);
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
        throw nb::value_error("read_ahead: expected what record_runs returns");
    const ByteRun* first = reinterpret_cast<const ByteRun*>(bytes.data());
    GilRelease released;
    std::for_each(first, first + bytes.size() / sizeof(ByteRun), request_pages);
}

nb::object find_record(nb::handle_t<ShardMap> self, uint64_t id) {
    const ShardMap& map = *nb::inst_ptr<ShardMap>(self);
    std::string why;
    RecordBytes record;
    {
        GilRelease released;  // a page of the tree may have to come from the disk
        record = map.find(id, why);
    }
    if (!record.bytes) throw nb::key_error(why.c_str());
    return viewed(record, nb::borrow(self));
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
