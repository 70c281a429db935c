#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "bind.h"
#include "record.h"
#include "shard_map.h"

namespace nb = nanobind;

namespace fastload {
namespace {

using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Found {
    std::vector<RecordBytes> records;
    std::vector<PartRow> rows;
    std::vector<int64_t> starts;  // the first row of each sample, and the end of the last
    std::vector<std::pair<size_t, std::string>> faults;
};

// Where every sample has rows of the same fields, items and roles, in the same order: how many; else 0.
size_t rows_alike(const Found& found) {
    const size_t n = found.records.size(), each = n ? size_t(found.starts[1]) : 0;
    if (!found.faults.empty() || found.rows.size() != n * each) return 0;
    for (size_t i = each; i < found.rows.size(); ++i) {
        const PartRow &one = found.rows[i], &first = found.rows[i % each];
        if (size_t(found.starts[i / each]) != i - i % each || one.field != first.field || one.item != first.item || one.role != first.role) return 0;
    }
    return each;
}

Found find_all(const std::vector<const ShardMap*>& maps, const Numbers& shards, const Numbers& ids, bool check_crc) {
    Found found;
    const size_t n = ids.size();
    found.records.resize(n);
    found.rows.reserve(n * 4);
    found.starts.reserve(n + 1);
    found.starts.push_back(0);
    for (size_t i = 0; i < n; ++i) {
        const size_t before = found.rows.size(), shard = size_t(shards(i));
        const ShardMap* map = shard < maps.size() ? maps[shard] : nullptr;
        std::string fault = "its shard is not open";
        if (map) {
            fault.clear();
            found.records[i] = map->find(uint64_t(ids(i)), fault);
        }
        const RecordBytes& record = found.records[i];
        if (fault.empty()) fault = read_part_rows({record.bytes, record.size, uint64_t(ids(i))}, uint32_t(i), check_crc, found.rows);
        if (!fault.empty()) {
            found.rows.resize(before);
            found.faults.emplace_back(i, std::move(fault));
        }
        found.starts.push_back(int64_t(found.rows.size()));
    }
    return found;
}

// (records, rows as bytes, starts as bytes, rows of each sample where all are alike, {place: what is wrong}); loader/parts.py knows the
// dtypes. The records are views that hold nothing: whoever uses them holds the maps.
nb::tuple read_records(nb::list maps, Numbers shards, Numbers ids, bool check_crc) {
    if (shards.size() != ids.size()) throw nb::value_error("read_records: expected a shard for each id");
    std::vector<const ShardMap*> open;
    for (nb::handle map : maps) open.push_back(map.is_none() ? nullptr : nb::cast<const ShardMap*>(map));
    Found found;
    size_t alike;
    {
        nb::gil_scoped_release unlocked;
        found = find_all(open, shards, ids, check_crc);
        alike = rows_alike(found);
    }
    nb::list records;
    static char nothing;
    for (const RecordBytes& each : found.records) {
        char* bytes = each.bytes ? reinterpret_cast<char*>(const_cast<uint8_t*>(each.bytes)) : &nothing;
        records.append(nb::steal(PyMemoryView_FromMemory(bytes, Py_ssize_t(each.size), PyBUF_READ)));
    }
    nb::dict wrong;
    for (auto& [place, fault] : found.faults) wrong[nb::int_(place)] = nb::str(fault.c_str());
    return nb::make_tuple(records, nb::bytes(reinterpret_cast<const char*>(found.rows.data()), found.rows.size() * sizeof(PartRow)),
                          nb::bytes(reinterpret_cast<const char*>(found.starts.data()), found.starts.size() * sizeof(int64_t)), alike, wrong);
}

nb::object find_record(const ShardMap& map, uint64_t id) {
    std::string why;
    RecordBytes record;
    {
        nb::gil_scoped_release unlocked;  // a page of the tree may have to come from the disk
        record = map.find(id, why);
    }
    if (!record.bytes) throw nb::key_error(why.c_str());
    return nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(const_cast<uint8_t*>(record.bytes)), Py_ssize_t(record.size), PyBUF_READ));
}

}  // namespace

void bind_record(nb::module_& module) {
    module.attr("part_row_size") = sizeof(PartRow);
    nb::class_<ShardMap>(module, "ShardMap")
        .def(nb::init<int, size_t>(), nb::arg("descriptor"), nb::arg("size"))
        .def_prop_ro("entries", &ShardMap::entries)
        .def("find", &find_record, nb::arg("id"));
    module.def("read_records", &read_records, nb::arg("maps"), nb::arg("shards"), nb::arg("ids"), nb::arg("check_crc") = true);
}

}  // namespace fastload
