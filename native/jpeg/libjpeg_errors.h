// How libjpeg reports errors and warnings to us: as text, never on stderr, never by exit().
//
//     JpegErrors errors;                       // must outlive the libjpeg object
//     jpeg_decompress_struct decoder;
//     decoder.err = &errors;
//     if (setjmp(errors.jump)) return fail(errors.text);      // every libjpeg error lands here
//     jpeg_create_decompress(&decoder);
//
// The trap: longjmp runs no destructors. Between setjmp and the libjpeg calls there may be no C++
// object with a destructor whose life began after setjmp; what is changed after setjmp and read
// when it returns again must be volatile or in memory that libjpeg's caller owns. No exception may
// pass through libjpeg's frames either: throw after setjmp returned.
//
// Another trap: a decoder object used for a second image keeps the quantization and Huffman tables
// of the first (quant_tbl_ptrs, dc_huff_tbl_ptrs, ac_huff_tbl_ptrs); a file that lacks its own is
// then decoded with those, silently.
#pragma once

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it

#include <jpeglib.h>

namespace fastload {

struct JpegErrors : jpeg_error_mgr {
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX] = "";  // the error, once setjmp has returned not 0
    char warning[JMSG_LENGTH_MAX] =
        "";                // the first warning since reset(); num_warnings says how many
    int warning_code = 0;  // its code (jerror.h)
    // True for a warning that makes the pixels doubtful: it is then an error, at once. Null: no
    // warning is.
    bool (*fatal_warning)(j_common_ptr) = nullptr;

    JpegErrors() {
        jpeg_std_error(this);
        error_exit = [](j_common_ptr common) {
            JpegErrors& self = of(common);
            self.format_message(common, self.text);
            std::longjmp(self.jump, 1);
        };
        emit_message = [](j_common_ptr common, int level) {
            if (level >= 0) return;  // a trace
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

    // Before each image: libjpeg itself clears nothing when an object is used again.
    void reset() {
        num_warnings = 0;
        msg_code = warning_code = 0;
        text[0] = warning[0] = 0;
    }

    static JpegErrors& of(j_common_ptr common) { return *static_cast<JpegErrors*>(common->err); }
};

}  // namespace fastload
