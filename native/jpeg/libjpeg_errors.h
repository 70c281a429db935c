// Receives errors and warnings of libjpeg as text. libjpeg then neither prints to stderr nor exits.
//
//     JpegErrors errors;                       // must outlive the libjpeg object
//     jpeg_decompress_struct decoder;
//     decoder.err = &errors;
//     if (setjmp(errors.jump)) return fail(errors.text);      // every libjpeg error returns here
//     jpeg_create_decompress(&decoder);
//
// Trap 1: longjmp runs no destructors. No C++ object with a destructor may be created between
// setjmp and the libjpeg calls. A variable that changes after setjmp and is read after longjmp must
// be volatile or outside the frame. No exception may pass through the frames of libjpeg either:
// throw after setjmp has returned.
//
// Trap 2: a decoder object keeps the quantization and Huffman tables of the previous image
// (quant_tbl_ptrs, dc_huff_tbl_ptrs, ac_huff_tbl_ptrs). A file that lacks its own tables is
// silently decoded with those.
#pragma once

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it

#include <jpeglib.h>

namespace fastload {

struct JpegErrors : jpeg_error_mgr {
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX] = "";     // valid after setjmp has returned nonzero
    char warning[JMSG_LENGTH_MAX] = "";  // the first warning since reset(); num_warnings counts all
    int warning_code = 0;                // its code (jerror.h)
    // Returns true for a warning that makes the pixels unreliable, which is then an error. Null: no
    // warning is an error.
    bool (*fatal_warning)(j_common_ptr) = nullptr;

    JpegErrors() {
        jpeg_std_error(this);
        error_exit = [](j_common_ptr common) {
            JpegErrors& self = of(common);
            self.format_message(common, self.text);
            std::longjmp(self.jump, 1);
        };
        emit_message = [](j_common_ptr common, int level) {
            if (level >= 0) return;  // trace message
            JpegErrors& self = of(common);
            if (self.num_warnings++ == 0) {
                self.warning_code = self.msg_code;
                self.format_message(common, self.warning);
            }
            if (self.fatal_warning && self.fatal_warning(common)) self.error_exit(common);
        };
        output_message = [](j_common_ptr) {};
    }
    JpegErrors(const JpegErrors&) = delete;
    JpegErrors& operator=(const JpegErrors&) = delete;

    // Call before each image: libjpeg clears nothing when an object is reused.
    void reset() {
        num_warnings = 0;
        msg_code = warning_code = 0;
        text[0] = warning[0] = 0;
    }

    static JpegErrors& of(j_common_ptr common) { return *static_cast<JpegErrors*>(common->err); }
};

}  // namespace fastload
