#include "plan/decode_requests.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

bool is_decodable_in_place(const PartRow& row) {
    return row.codec == uint8_t(StoredCodec::kJpeg) || row.codec == uint8_t(StoredCodec::kRaw);
}

void fill(DecodeRequest& request, const PartRow& row, const FieldSelection& selection,
          const PlanColumns& plan, size_t slot) {
    std::memset(static_cast<void*>(&request), 0, sizeof request);
    request.offset = row.offset;
    request.size = row.length;
    request.interval = row.interval;
    request.source = row.sample - selection.first;
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
    request.codec = uint8_t(row.codec == uint8_t(StoredCodec::kJpeg) ? RequestCodec::kJpeg
                                                                     : RequestCodec::kRaw);
    request.raw_channels = row.channels;
    request.raw_bits = row.bits;
    request.orientation = std::max<uint8_t>(row.orientation, 1);
    request.flip = plan.flip[slot];
    request.filter = selection.filter;
    request.exact = selection.exact;
    request.check = 1;  // the decode thread verifies the checksum
}

}  // namespace

FilledRequests fill_requests(const PartRow* rows, size_t n_rows, const FieldSelection& selection,
                             const PlanColumns& plan, DecodeRequest* requests) {
    FilledRequests filled;
    const PartRow* image = nullptr;  // the last image; its restart index follows it
    for (const PartRow* row = rows; row != rows + n_rows; ++row) {
        if (row->field != selection.field) continue;
        if (row->role == uint8_t(PartRole::kData)) {
            const bool in_place = is_decodable_in_place(*row) &&
                                  (!selection.mask_bits || row->bits == selection.mask_bits);
            if (!in_place) filled.slots_to_unpack.push_back(filled.n);
            if (filled.n < plan.n) fill(requests[filled.n], *row, selection, plan, filled.n);
            filled.n_bytes += row->length;
            ++filled.n;
            image = row;
        } else if (row->role == uint8_t(PartRole::kRestartIndex) && image &&
                   image->sample == row->sample && image->item == row->item && filled.n <= plan.n) {
            requests[filled.n - 1].index_offset = row->offset;
            requests[filled.n - 1].index_count = row->length / 4;
        }
    }
    return filled;
}

}  // namespace fastload
