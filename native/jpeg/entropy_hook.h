// Tests whether libjpeg calls the replaced entropy decoder, and switches it on and off.
#pragma once

namespace fastload {

// True if libjpeg calls the replaced function and the pixels are equal. Tested once, on a generated
// image.
bool entropy_hook_works();

// True if the hook works and is enabled.
bool use_entropy_hook();

// For tests and benchmarks. If disabled, libjpeg decodes everything itself. Returns
// use_entropy_hook().
bool set_entropy_hook(bool enabled);

}  // namespace fastload
