// Builds decode requests from part tables and a plan, for one image or mask field of a batch, in
// one pass over the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool/decode_request.h"
#include "shard/record.h"

namespace fastload {

// One value per image. See fastload/_plan/rows.py.
struct PlanColumns {
    const int32_t *x, *y, *w, *h, *out_w, *out_h, *pad_left, *pad_top;
    const uint8_t* flip;
    size_t n;
};

struct FieldSelection {
    uint32_t field;
    // Index of the first sample of the batch in the rows, which may hold several batches.
    uint32_t first;
    uint32_t mask_bits;  // bits per pixel of a mask; 0 for images
    uint8_t filter, exact;
};

struct FilledRequests {
    size_t n = 0;          // images of the field; at most plan.n requests are written
    uint64_t n_bytes = 0;  // size of the encoded images
    // Slots that the decode threads cannot read in place: PNG, deflated masks.
    std::vector<size_t> slots_to_unpack;
};

// Writes plan.n requests, the same as fastload/_load/decode_requests.py without the core.
FilledRequests fill_requests(const PartRow* rows, size_t n_rows, const FieldSelection& selection,
                             const PlanColumns& plan, DecodeRequest* requests);

}  // namespace fastload
