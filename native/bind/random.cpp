#include <nanobind/nanobind.h>

#include "bind/module.h"
#include "bind/python_support.h"
#include "plan/random.h"

namespace nb = nanobind;

namespace fastload {
namespace {

template <typename Item>
size_t count_items(const BufferView& bytes, const char* name) {
    if (bytes.size() % sizeof(Item))
        throw_value_error(name, ": expected a multiple of ", sizeof(Item), " bytes, found ",
                          bytes.size());
    return bytes.size() / sizeof(Item);
}

template <typename Item>
Item* output_items(const BufferView& bytes, size_t n) {
    if (bytes.size() != n * sizeof(Item))
        throw_value_error("result: expected ", n * sizeof(Item), " bytes, found ", bytes.size());
    return const_cast<Item*>(reinterpret_cast<const Item*>(bytes.data()));
}

void permute_positions(nb::handle positions, nb::handle result, uint64_t n, unsigned half_bits,
                       nb::handle keys) {
    const BufferView places(positions), output(result, true), network_keys(keys);
    const size_t count = count_items<int64_t>(places, "positions");
    const auto* requested = reinterpret_cast<const int64_t*>(places.data());
    if (half_bits < 1 || half_bits > 32 || (half_bits < 32 && n > uint64_t(1) << 2 * half_bits))
        throw_value_error("half_bits: expected 1 to 32 and 2 ** (2 * half_bits) >= n, found ",
                          half_bits, " for n ", n);
    for (size_t i = 0; i < count; ++i)  // A position outside [0, n) could loop forever.
        if (requested[i] < 0 || uint64_t(requested[i]) >= n)
            throw nb::index_error(("positions: expected 0 to " + std::to_string(n) +
                                   " - 1, found " + std::to_string(requested[i]))
                                      .c_str());
    const FeistelNetwork network{n, half_bits,
                                 reinterpret_cast<const uint64_t*>(network_keys.data()),
                                 count_items<uint64_t>(network_keys, "keys")};
    permute(network, requested, count, output_items<int64_t>(output, count));
}

void uniform_numbers(nb::handle ids, nb::handle counters, nb::handle result, uint32_t key_low,
                     uint32_t key_high) {
    const BufferView samples(ids), requested(counters), output(result, true);
    const size_t count = count_items<uint64_t>(samples, "ids"),
                 n_counters = count_items<PhiloxCounter>(requested, "counters");
    uniform(key_low, key_high, reinterpret_cast<const uint64_t*>(samples.data()), count,
            reinterpret_cast<const PhiloxCounter*>(requested.data()), n_counters,
            output_items<double>(output, 4 * count * n_counters));
}

}  // namespace

void bind_random(nb::module_& module) {
    module.def("permute", &permute_positions, nb::arg("positions"), nb::arg("result"),
               nb::kw_only(), nb::arg("n"), nb::arg("half_bits"), nb::arg("keys"));
    module.def("uniform", &uniform_numbers, nb::arg("ids"), nb::arg("counters"), nb::arg("result"),
               nb::kw_only(), nb::arg("key_low"), nb::arg("key_high"));
}

}  // namespace fastload
