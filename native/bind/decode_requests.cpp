#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bind/module.h"
#include "bind/python_support.h"
#include "plan/decode_requests.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// Python passes NumPy arrays as views of bytes: exporting the buffer of a structured array makes
// NumPy format the type string of all its members.
template <typename Item>
const Item* items(const BufferView& bytes, size_t n, const char* name) {
    if (bytes.size() != n * sizeof(Item))
        throw_value_error(name, ": expected ", n, " items, found ", bytes.size(), " bytes");
    return reinterpret_cast<const Item*>(bytes.data());
}

// Fills `requests` and returns (encoded bytes, slots to unpack). `plan` is the tuple x, y, w, h,
// out_w, out_h, pad_left, pad_top, flip.
nb::tuple image_requests(nb::handle rows, nb::tuple plan, nb::handle requests, uint32_t field,
                         uint32_t first, uint32_t mask_bits, uint8_t filter, bool exact) {
    if (plan.size() != 9) throw_value_error("plan: expected 9 arrays, found ", plan.size());
    const BufferView table(rows), output(requests, true), x(plan[0]), y(plan[1]), w(plan[2]),
        h(plan[3]), out_w(plan[4]), out_h(plan[5]), left(plan[6]), top(plan[7]), flip(plan[8]);
    const size_t n = flip.size();
    const PlanColumns columns{items<int32_t>(x, n, "x"),
                              items<int32_t>(y, n, "y"),
                              items<int32_t>(w, n, "w"),
                              items<int32_t>(h, n, "h"),
                              items<int32_t>(out_w, n, "out_w"),
                              items<int32_t>(out_h, n, "out_h"),
                              items<int32_t>(left, n, "pad_left"),
                              items<int32_t>(top, n, "pad_top"),
                              flip.data(),
                              n};
    const PartRow* part_rows = items<PartRow>(table, table.size() / sizeof(PartRow), "rows");
    DecodeRequest* target = const_cast<DecodeRequest*>(items<DecodeRequest>(output, n, "requests"));
    const FilledRequests filled =
        fill_requests(part_rows, table.size() / sizeof(PartRow),
                      {field, first, mask_bits, filter, exact}, columns, target);
    if (filled.n != n)
        throw_value_error("plan: expected ", filled.n, " rows, one per image, found ", n);
    return nb::make_tuple(filled.n_bytes, filled.slots_to_unpack);
}

}  // namespace

void bind_decode_requests(nb::module_& module) {
    module.def("image_requests", &image_requests, nb::arg("rows"), nb::arg("plan"),
               nb::arg("requests"), nb::kw_only(), nb::arg("field"), nb::arg("first"),
               nb::arg("mask_bits"), nb::arg("filter"), nb::arg("exact"));
}

}  // namespace fastload
