// Writes tokens as entropy-coded data.
#pragma once

#include <cstdint>
#include <vector>

#include "jpeg/byte_buffer.h"
#include "jpeg/huffman.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// Appends the symbols that read_symbols() found to `out`, with new codes and restart markers.
// `index` receives the offset in `out` of each segment and of the end.
void write_symbols(SymbolList& list, const HuffmanCode codes[kTables], ByteBuffer& out,
                   std::vector<uint32_t>& index);

}  // namespace fastload
