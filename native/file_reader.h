// Reading a source file as pack wants it: whole, regular, never outside its root.
#pragma once

#include <cstddef>

#include "byte_buffer.h"

namespace fastload {

// The content of a regular, non-empty file of at most `limit` bytes that did not change while it was read, or null: for all
// else, and where the system cannot promise that the path stays below `root`. The buffer is the thread's own and valid until
// its next call.
const ByteBuffer* read_file_inside(const char* root, const char* path, size_t limit);

// Asks the system to begin writing what it holds back of a file; false where it cannot be asked. A sync at the end then has
// little left to do.
bool start_writing(int descriptor);

}  // namespace fastload
