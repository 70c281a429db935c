#include "plan/decode_requests.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

constexpr uint8_t kStoredJpeg = 1, kStoredRaw = 3;  // codecs in a part table
constexpr uint8_t kData = 0, kRestartIndex = 1;     // roles

void fill(Request& request, const PartRow& row, const Wanted& wanted, const PlanColumns& plan,
          size_t slot) {
    std::memset(static_cast<void*>(&request), 0, sizeof request);
    request.offset = row.offset;
    request.size = row.length;
    request.interval = row.interval;
    request.source = row.sample - wanted.first;
    request.x = plan.x[slot];
    request.y = plan.y[slot];
    request.w = plan.w[slot];
    request.h = plan.h[slot];
    request.out_w = plan.out_w[slot];
    request.out_h = plan.out_h[slot];
    request.pad_left = plan.pad_left[slot];
    request.pad_top = plan.pad_top[slot];
    request.raw_w = row.width;
    request.raw_h = row.height;
    request.codec = uint8_t(row.codec == kStoredJpeg ? Codec::kJpeg : Codec::kRaw);
    request.raw_channels = row.channels;
    request.raw_bits = row.bits;
    request.orientation = std::max<uint8_t>(row.orientation, 1);
    request.flip = plan.flip[slot];
    request.filter = wanted.filter;
    request.exact = wanted.exact;
    request.check = 1;  // the checksum is the decode thread's business
}

}  // namespace

Asked fill_requests(const PartRow* rows, size_t n_rows, const Wanted& wanted,
                    const PlanColumns& plan, Request* requests) {
    Asked asked;
    const PartRow* image = nullptr;  // the last one; its index follows it
    for (const PartRow* row = rows; row != rows + n_rows; ++row) {
        if (row->field != wanted.field) continue;
        if (row->role == kData) {
            const bool in_place = (row->codec == kStoredJpeg || row->codec == kStoredRaw) &&
                                  (!wanted.mask_bits || row->bits == wanted.mask_bits);
            if (!in_place) asked.elsewhere.push_back(asked.n);
            if (asked.n < plan.n) fill(requests[asked.n], *row, wanted, plan, asked.n);
            asked.n_bytes += row->length;
            ++asked.n;
            image = row;
        } else if (row->role == kRestartIndex && image && image->sample == row->sample &&
                   image->item == row->item && asked.n <= plan.n) {
            requests[asked.n - 1].index_offset = row->offset;
            requests[asked.n - 1].index_count = row->length / 4;
        }
    }
    return asked;
}

}  // namespace fastload
