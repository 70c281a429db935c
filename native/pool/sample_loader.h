// One sample from encoded bytes to finished pixels in the caller's memory: check -> cut -> decode
// -> orient -> resize -> place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jpeg/decoder.h"
#include "pixels/normalize.h"
#include "pixels/output.h"
#include "pixels/resize.h"
#include "pixels/row_writer.h"
#include "pool/decode_request.h"
#include "pool/sample_plan.h"

namespace fastload {

// Works on one sample at a time; keeps its decoder and buffers for the next.
class SampleLoader {
public:
    // Never throws. The slot is always written: with the fill color where the status is not kOk.
    SampleStatus load(const DecodeRequest& request, const SourceBytes& source,
                      const BatchOutput& output, const NormalizeTable* table, int64_t slot,
                      StageTimes& times, std::string& why);

private:
    SampleStatus run(const DecodeRequest& asked, const SourceBytes& source,
                     const BatchOutput& output, const NormalizeTable* table, int64_t slot);
    SampleStatus load_jpeg(const DecodeRequest& request, const SourceBytes& source,
                           SamplePlan& plan);
    SampleStatus load_raw(const DecodeRequest& request, const SourceBytes& source,
                          SamplePlan& plan);
    SampleStatus decode_jpeg(SamplePlan& plan, bool plain);
    SampleStatus stream_jpeg(SamplePlan& plan);
    SampleStatus stream_raw(SamplePlan& plan, const uint8_t* pixels, ptrdiff_t stride);
    SampleStatus stream_oriented(SamplePlan& plan);
    void begin_output(SamplePlan& plan, int channels);
    SampleStatus refuse(SampleStatus status, std::string why);
    SampleStatus refuse_jpeg();  // as the decoder says
    void tick(Stage stage);
    void trim();

    JpegDecoder decoder_;
    Resizer resizer_;
    RowWriter writer_;
    std::vector<uint8_t> strip_, cut_, whole_, rotated_;
    std::string why_;
    StageTimes times_{};  // of the sample under way; the caller's lie beside those that other
                          // threads write
    uint64_t clock_ = 0;
};

}  // namespace fastload
