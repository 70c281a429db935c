// From part tables and a plan to decode requests, for one image or mask field of a batch, in one
// pass over the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool/decode_request.h"
#include "shard/record.h"

namespace fastload {

// A number for each image: fastload/_plan/rows.py.
struct PlanColumns {
    const int32_t *x, *y, *w, *h, *out_w, *out_h, *pad_left, *pad_top;
    const uint8_t* flip;
    size_t n;
};

struct FieldSelection {
    uint32_t field;
    uint32_t first;  // number of the batch's first sample in the rows: they may be a part of many
                     // that were read together
    uint32_t mask_bits;  // of a mask's pixel, 0 for images
    uint8_t filter, exact;
};

struct FilledRequests {
    size_t n = 0;          // images of the field; only as many as there are in the plan are written
    uint64_t n_bytes = 0;  // encoded
    std::vector<size_t>
        elsewhere;  // slots of images that decode threads cannot read in place: PNG, deflated masks
};

// Writes plan.n requests, as fastload/_load/decode_requests.py would without the core.
FilledRequests fill_requests(const PartRow* rows, size_t n_rows, const FieldSelection& wanted,
                             const PlanColumns& plan, DecodeRequest* requests);

}  // namespace fastload
