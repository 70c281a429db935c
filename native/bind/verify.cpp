#include "bind/module.h"
#include "bind/python_support.h"
#include "shard/shard_file.h"
#include "verify/record_check.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// The result of check_records(). fastload/_store/record.py has the dtype of rows.
struct CheckResult {
    nb::bytes rows, values, doubtful;
};

// `checks` and `lists` have one byte per field.
CheckResult check_range(const ShardFile& file, uint64_t first, size_t n, nb::bytes checks,
                        nb::bytes lists) {
    if (checks.size() != lists.size())
        throw nb::value_error("check_records: expected as many checks as lists");
    std::vector<FieldRule> fields;
    for (size_t i = 0; i < checks.size(); ++i) {
        const uint8_t check = uint8_t(checks.c_str()[i]);
        if (check > uint8_t(ValueCheck::kMask))
            throw_value_error("check_records: unknown check ", int(check));
        fields.push_back({ValueCheck(check), lists.c_str()[i] != 0});
    }
    CheckedRecords found;
    {
        GilRelease released;
        found = check_records(file, first, n, fields);
    }
    return {as_bytes(found.rows), as_bytes(found.values), as_bytes(found.doubtful)};
}

}  // namespace

void bind_verify(nb::module_& module) {
    nb::class_<CheckResult>(module, "CheckedRecords")
        .def_ro("rows", &CheckResult::rows)
        .def_ro("values", &CheckResult::values)
        .def_ro("doubtful", &CheckResult::doubtful);
    module.def("check_records", &check_range, nb::arg("file"), nb::arg("first"), nb::arg("n"),
               nb::kw_only(), nb::arg("checks"), nb::arg("lists"));
}

}  // namespace fastload
