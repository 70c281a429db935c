#include "jpeg/entropy_hook.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "jpeg/entropy_reader.h"
#include "jpeg/libjpeg_errors.h"

namespace fastload {
namespace {

std::atomic<bool>& hook_state() {
    static std::atomic<bool> on{true};
    return on;
}

// Encodes an image of noise, 40 x 24 in 4:2:0, with a restart marker every 2 MCUs.
size_t encode_test_jpeg(jpeg_compress_struct& encoder, unsigned char** bytes) {
    unsigned long size = 0;
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, bytes, &size);
    encoder.image_width = 40;
    encoder.image_height = 24;
    encoder.input_components = 3;
    encoder.in_color_space = JCS_RGB;
    jpeg_set_defaults(&encoder);
    encoder.restart_interval = 2;
    jpeg_start_compress(&encoder, TRUE);
    uint32_t random = 1;
    JSAMPLE row[40 * 3];
    JSAMPROW rows[1] = {row};
    while (encoder.next_scanline < encoder.image_height) {
        for (JSAMPLE& sample : row)
            sample = JSAMPLE((random = random * 1664525u + 1013904223u) >> 24);
        jpeg_write_scanlines(&encoder, rows, 1);
    }
    jpeg_finish_compress(&encoder);
    return size;
}

void decode_test_jpeg(jpeg_decompress_struct& decoder, const unsigned char* bytes, size_t size,
                      EntropyReader* reader, JSAMPLE* pixels) {
    jpeg_create_decompress(&decoder);
    jpeg_mem_src(&decoder, bytes, static_cast<unsigned long>(size));
    jpeg_read_header(&decoder, TRUE);
    jpeg_start_decompress(&decoder);
    if (reader) reader->attach(decoder, 0, decoder.MCUs_per_row);
    while (decoder.output_scanline < decoder.output_height) {
        JSAMPROW rows[1] = {pixels + size_t(decoder.output_scanline) * 40 * 3};
        jpeg_read_scanlines(&decoder, rows, 1);
    }
    jpeg_finish_decompress(&decoder);
}

bool test_hook() {
    JpegErrors errors;
    EntropyReader reader;
    jpeg_compress_struct encoder{};
    jpeg_decompress_struct reference{}, hooked{};
    encoder.err = reference.err = hooked.err = &errors;
    static unsigned char* volatile bytes_seen;  // static: must survive longjmp
    unsigned char* bytes = nullptr;
    JSAMPLE expected[24 * 40 * 3] = {}, found[24 * 40 * 3] = {};
    volatile bool equal = false;
    bytes_seen = nullptr;
    if (!setjmp(errors.jump)) {
        const size_t size = encode_test_jpeg(encoder, &bytes);
        bytes_seen = bytes;
        decode_test_jpeg(reference, bytes, size, nullptr, expected);
        decode_test_jpeg(hooked, bytes, size, &reader, found);
        equal = reader.finished() && !std::memcmp(expected, found, sizeof expected);
    }
    std::free(bytes_seen);
    jpeg_destroy_compress(&encoder);
    jpeg_destroy_decompress(&reference);
    jpeg_destroy_decompress(&hooked);
    return equal;
}

}  // namespace

bool entropy_hook_works() {
    static const bool works = test_hook();
    return works;
}

bool use_entropy_hook() {
    return hook_state().load(std::memory_order_relaxed) && entropy_hook_works();
}

bool set_entropy_hook(bool enabled) {
    hook_state().store(enabled, std::memory_order_relaxed);
    return use_entropy_hook();
}

}  // namespace fastload
