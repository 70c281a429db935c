// Writes tokens as entropy-coded data.
#pragma once

#include <cstdint>
#include <vector>

#include "jpeg/byte_buffer.h"
#include "jpeg/huffman.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// Appends the symbols that ScanReader found to `out`, with new codes and restart markers.
// `index` receives the offset in `out` of each segment and of the end. Returns false, before
// anything is written, if a token does not fit.
bool write_symbols(SymbolList& list, const HuffmanCode codes[kTables], ByteBuffer& out,
                   std::vector<uint32_t>& index);

}  // namespace fastload
