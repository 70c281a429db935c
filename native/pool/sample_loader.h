// Loads one sample, from encoded bytes to finished pixels in the output: read and verify -> cut ->
// decode ->
// orient -> resize -> write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jpeg/decoder.h"
#include "pixels/normalize.h"
#include "pixels/output.h"
#include "pixels/resize.h"
#include "pixels/row_writer.h"
#include "pixels/wide_resize.h"
#include "pool/decode_request.h"
#include "pool/sample_plan.h"

namespace fastload {

// Loads one sample at a time. Reuses its decoder and buffers for the next one.
class SampleLoader {
public:
    // Never throws. Always writes the slot: if the status is not kOk, with the fill color.
    SampleStatus load(const DecodeRequest& request, const SourceBytes& source,
                      const BatchOutput& output, const NormalizeTable* table, int64_t slot,
                      StageTimes& times, std::string& error);

private:
    SampleStatus run(const DecodeRequest& original, const SourceBytes& source,
                     const BatchOutput& output, const NormalizeTable* table, int64_t slot);
    const uint8_t* read_source(const SourceBytes& source, bool check);
    SampleStatus load_jpeg(const DecodeRequest& request, const uint8_t* source, SamplePlan& plan);
    SampleStatus load_raw(const DecodeRequest& request, const uint8_t* source, SamplePlan& plan);
    SampleStatus decode_jpeg(SamplePlan& plan, bool libjpeg_only);
    SampleStatus stream_jpeg(SamplePlan& plan);
    SampleStatus stream_raw(SamplePlan& plan, const uint8_t* pixels, ptrdiff_t stride);
    SampleStatus stream_oriented(SamplePlan& plan);
    ResizeJob begin_output(SamplePlan& plan);
    SampleStatus refuse(SampleStatus status, std::string error);
    SampleStatus refuse_jpeg();  // with the error of the decoder
    void tick(Stage stage);
    void trim();

    JpegDecoder decoder_;
    Resizer resizer_;
    WideResizer wide_resizer_;
    RowWriter writer_;
    std::vector<uint8_t> record_, strip_, cut_, whole_, rotated_;
    std::string error_;
    // Times of the current sample. The results of the batch are next to slots that other threads
    // write.
    StageTimes times_{};
    uint64_t clock_ = 0;
};

}  // namespace fastload
