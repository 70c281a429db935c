#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "bind.h"
#include "record.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// (rows as bytes, {place in the batch: what is wrong}); fastload/loader/parts.py gives the rows their numpy dtype.
nb::tuple part_rows(nb::sequence records, nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids, bool check_crc) {
    std::vector<std::unique_ptr<Bytes>> held;
    std::vector<RecordView> views;
    for (nb::handle record : records) {
        held.push_back(std::make_unique<Bytes>(record));
        if (held.size() > ids.size()) break;
        views.push_back({held.back()->data(), held.back()->size(), uint64_t(ids(held.size() - 1))});
    }
    if (held.size() != ids.size()) throw nb::value_error("part_rows: expected as many ids as records");
    std::vector<PartRow> rows;
    std::vector<std::pair<size_t, std::string>> faults;
    {
        nb::gil_scoped_release unlocked;
        rows.reserve(views.size() * 4);
        for (size_t i = 0; i < views.size(); ++i) {
            size_t before = rows.size();
            std::string fault = read_part_rows(views[i], uint32_t(i), check_crc, rows);
            if (fault.empty()) continue;
            rows.resize(before);
            faults.emplace_back(i, std::move(fault));
        }
    }
    nb::dict wrong;
    for (auto& [place, fault] : faults) wrong[nb::int_(place)] = nb::str(fault.c_str());
    return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(PartRow)), wrong);
}

}  // namespace

void bind_record(nb::module_& module) {
    module.attr("part_row_size") = sizeof(PartRow);
    module.def("part_rows", &part_rows, nb::arg("records"), nb::arg("ids"), nb::arg("check_crc") = true);
}

}  // namespace fastload
