// Whether libjpeg can be made to call our entropy reader, and whether it should.
#pragma once

namespace fastload {

// True if libjpeg calls the replaced entry and the pixels are equal. Tried once, on an image that
// is generated for it.
bool entropy_hook_works();

// True if the hook works and is enabled.
bool use_entropy_hook();

// For tests and comparisons: disabled, libjpeg decodes everything itself. Returns
// use_entropy_hook().
bool set_entropy_hook(bool enabled);

}  // namespace fastload
