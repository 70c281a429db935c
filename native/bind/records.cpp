#include "bind/records.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "bind/python_support.h"
#include "shard/chunk_cache.h"
#include "shard/read_ahead.h"
#include "shard/record.h"

namespace nb = nanobind;

namespace fastload {
namespace {

using Int64Array = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct RecordScan {
    std::shared_ptr<RecordSet> set = std::make_shared<RecordSet>();
    std::vector<PartRow> rows;
    std::vector<int64_t> starts;  // first row of each sample, then the number of rows
    std::vector<std::pair<size_t, std::string>> faults;
};

// Returns the number of rows per sample if every sample has the same fields, items and roles in the
// same order. Returns 0 otherwise.
size_t rows_per_sample(const RecordScan& found) {
    const size_t n = found.set->records.size(), each = n ? size_t(found.starts[1]) : 0;
    if (!found.faults.empty() || found.rows.size() != n * each) return 0;
    const PartRow* row = found.rows.data();
    for (size_t i = 0; i < n; ++i) {
        if (size_t(found.starts[i]) != i * each) return 0;
        for (size_t j = 0; j < each; ++j, ++row) {
            const PartRow& first = found.rows[j];
            if (row->field != first.field || row->item != first.item || row->role != first.role)
                return 0;
        }
    }
    return each;
}

constexpr size_t kSmallRecord = 8 << 10;  // read at once: a second read costs more than copying it
constexpr size_t kFirstRead = 256;        // header and part table of up to 9 parts

// Reads a record that was found: all of it if it is small, otherwise header and part table. Returns
// the error.
std::string read_head(StoredRecord& record, RecordSet& set, ChunkCache* chunks) {
    std::string error;
    const bool small = record.size <= kSmallRecord;
    const size_t n = small ? record.size : kFirstRead;
    uint8_t* bytes = set.allocate(n);
    if (small && chunks) {
        if (!chunks->copy(*record.file, record.offset, bytes, n)) return "cannot be read";
    } else if (!record.file->read(record.offset, bytes, n, error)) {
        return error;
    }
    size_t head = n;
    if (n < record.size && (head = record_head_size(bytes, n, record.size)) > n) {
        uint8_t* longer = set.allocate(head);
        std::copy_n(bytes, n, longer);
        if (!record.file->read(record.offset + n, longer + n, head - n, error)) return error;
        bytes = longer;
    }
    record.bytes = bytes;
    record.n_bytes = head;
    return error;
}

// Reads all of a record whose header and part table are valid. This limits the memory for a damaged
// tree: a header states the length and the id of its record.
std::string read_rest(const StoredRecord& record, std::unique_ptr<uint8_t[]>& bytes) {
    bytes.reset(new uint8_t[record.size]);
    return read_checked(record, bytes.get());
}

void set_complete(StoredRecord& record, RecordSet& set, std::unique_ptr<uint8_t[]> bytes) {
    record.bytes = set.adopt(std::move(bytes));
    record.n_bytes = record.size;
}

// Reads the record that was found at `place`.
std::string read_found(const ShardFile& file, const RecordPlace& place, uint64_t id,
                       uint32_t sample, bool check_crc, ChunkCache* chunks, RecordScan& found) {
    std::string error;
    StoredRecord& record = found.set->records[sample];
    record = {&file, place.offset, place.size, nullptr, 0};
    if (place.bytes) {
        uint8_t* bytes = found.set->allocate(place.size);
        record.bytes = std::copy_n(place.bytes, place.size, bytes) - place.size;
        record.n_bytes = place.size;
    } else {
        error = read_head(record, *found.set, chunks);
    }
    if (!error.empty()) return error;
    const bool complete = record.complete();
    error =
        read_part_rows({record.bytes, record.size}, id, sample, check_crc && complete, found.rows);
    if (error.empty() && check_crc && !complete) {
        std::unique_ptr<uint8_t[]> bytes;
        error = read_rest(record, bytes);
        if (error.empty()) set_complete(record, *found.set, std::move(bytes));
    }
    return error;
}

// Samples whose records are prefetched into the CPU cache. In random order, the page and the record
// are cache misses of 100 ns each.
constexpr size_t kPagesAhead = 16, kRecordsAhead = 8, kPrefetchedBytes = 512;

// Reads samples, from chunks if there are any.
class SampleReader {
public:
    SampleReader(const std::vector<const ShardFile*>& files, const Int64Array& shards,
                 const Int64Array& ids, bool check_crc, ChunkCache* chunks, RecordScan& found)
        : files_(files),
          shards_(shards.data()),
          ids_(ids.data()),
          n_(ids.size()),
          check_crc_(check_crc),
          chunks_(chunks),
          found_(found),
          guesses_(chunks ? n_ : 0) {}

    std::string read(size_t i) {
        const ShardFile* file = file_of(i);
        if (!file) return "shard is not open";
        const size_t before = found_.rows.size();
        if (chunks_) {
            prefetch(i);
            const RecordPlace place = file->find(uint64_t(ids_[i]), guesses_[i].leaf, *chunks_);
            if (place.size && read_place(*file, place, i, chunks_).empty()) return "";
            found_.rows.resize(before);
        }
        // Also if the record in its chunk is damaged or incomplete. This finds the reason, and the
        // damage may be over.
        std::string error;
        const RecordPlace place = file->find(uint64_t(ids_[i]), leaf_, error);
        if (place.size) error = read_place(*file, place, i, nullptr);
        if (!error.empty()) found_.rows.resize(before);
        return error;
    }

private:
    struct Guess {
        LeafGuess leaf;
        const uint8_t*
            page;  // in the memory of the cache; may contain another page when it is used
    };

    const ShardFile* file_of(size_t i) const {
        return size_t(shards_[i]) < files_.size() ? files_[size_t(shards_[i])] : nullptr;
    }
    std::string read_place(const ShardFile& file, const RecordPlace& place, size_t i,
                           ChunkCache* chunks) {
        return read_found(file, place, uint64_t(ids_[i]), uint32_t(i), check_crc_, chunks, found_);
    }
    void prefetch(size_t i) {
        for (; n_started_ < std::min(n_, i + 1 + kPagesAhead); ++n_started_) {
            const ShardFile* file = file_of(n_started_);
            if (!file) continue;
            Guess& guess = guesses_[n_started_];
            guess.leaf = file->guess_leaf(uint64_t(ids_[n_started_]));
            guess.page = chunks_->page(*file, guess.leaf.page);
            if (guess.page) __builtin_prefetch(guess.page);
        }
        if (i + kRecordsAhead >= n_ || !guesses_[i + kRecordsAhead].page) return;
        const Guess& next = guesses_[i + kRecordsAhead];
        const uint8_t* entry =
            guess_entry(next.page, size_t(uint64_t(ids_[i + kRecordsAhead]) - next.leaf.first_key));
        for (size_t at = 0; at < kPrefetchedBytes; at += 64) __builtin_prefetch(entry + at);
    }

    const std::vector<const ShardFile*>& files_;
    const int64_t* shards_;
    const int64_t* ids_;
    size_t n_;
    bool check_crc_;
    ChunkCache* chunks_;
    RecordScan& found_;
    std::vector<Guess> guesses_;
    size_t n_started_ = 0;
    LeafPage leaf_;  // samples in order are often in the same page
};

RecordScan scan_records(const std::vector<const ShardFile*>& files, const Int64Array& shards,
                        const Int64Array& ids, bool check_crc, ChunkCache* chunks) {
    RecordScan found;
    const size_t n = ids.size();
    found.set->records.resize(n);
    found.rows.reserve(n * 4);
    found.starts.reserve(n + 1);
    found.starts.push_back(0);
    SampleReader reader(files, shards, ids, check_crc, chunks, found);
    for (size_t i = 0; i < n; ++i) {
        std::string fault = reader.read(i);
        if (!fault.empty()) found.faults.emplace_back(i, std::move(fault));
        found.starts.push_back(int64_t(found.rows.size()));
    }
    return found;
}

// Exports the bytes of one record to a memoryview. `set` owns them.
struct RecordExport {
    RecordBytes record;
    std::shared_ptr<RecordSet> set;

    static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
        static char nothing;
        const RecordBytes& record = nb::inst_ptr<RecordExport>(self)->record;
        char* bytes =
            record.bytes ? reinterpret_cast<char*>(const_cast<uint8_t*>(record.bytes)) : &nothing;
        return PyBuffer_FillInfo(view, self, bytes, Py_ssize_t(record.size), 1, flags);
    }
};

PyType_Slot record_export_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&RecordExport::get_buffer)}, {0, nullptr}};

// Returns a view of the record. The rest of it is read at the first call, so all views show the
// same bytes. If they cannot be read or are damaged, the view has fewer bytes than the record.
nb::object record_at(const Records& records, Py_ssize_t place) {
    if (place < 0) place += Py_ssize_t(records.size());
    if (place < 0 || place >= Py_ssize_t(records.size()))
        throw nb::index_error("record index is out of range");
    StoredRecord& record = records[size_t(place)];
    if (record.n_bytes && !record.complete()) {
        const StoredRecord known = record;
        std::unique_ptr<uint8_t[]> bytes;
        bool valid;
        {
            GilRelease released;
            valid = read_rest(known, bytes).empty();
        }
        // Another thread may have read it meanwhile.
        if (valid && !record.complete()) set_complete(record, *records.set(), std::move(bytes));
    }
    RecordExport view{{record.bytes, record.n_bytes}, records.set()};
    return nb::steal(PyMemoryView_FromObject(nb::cast(std::move(view)).ptr()));
}

Records records_at(const Records& records, const nb::slice& which) {
    auto [first, stop, step, count] = which.compute(records.size());
    if (step != 1) throw nb::value_error("records: expected a slice with step 1");
    return records.part(size_t(first), count);
}

// Collects references to the files of these samples only. They must be held while the GIL is
// released: another thread that opens the same shard at the same time may replace the file in the
// list and so drop the one being read.
nb::list hold_used_files(const nb::list& files, const Int64Array& shards) {
    std::vector<bool> wanted(files.size());
    for (size_t i = 0; i < shards.size(); ++i)
        if (size_t(shards(i)) < wanted.size()) wanted[size_t(shards(i))] = true;
    nb::list found;
    for (size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i] && !files[i].is_none()) found.append(files[i]);
    return found;
}

// Converts the list of files, indexed by shard. A shard that is not open gives null.
std::vector<const ShardFile*> open_files(const nb::list& files) {
    std::vector<const ShardFile*> open;
    for (nb::handle file : files)
        open.push_back(file.is_none() ? nullptr : nb::cast<const ShardFile*>(file));
    return open;
}

// A chunk cache as a Python object. Everything here runs under the GIL.
class SharedChunks {
public:
    explicit SharedChunks(size_t capacity) : chunks_(capacity) {}

    size_t capacity() const { return chunks_.capacity(); }
    // Returns null while another thread uses the cache. That thread does not exist in a forked
    // child, where it may have left the cache half changed.
    ChunkCache* acquire() {
        if (pid_ != getpid()) {
            if (used_) chunks_.clear();
            used_ = false;
            pid_ = getpid();
        }
        return std::exchange(used_, true) ? nullptr : &chunks_;
    }
    void release() { used_ = false; }

private:
    ChunkCache chunks_;
    bool used_ = false;
    pid_t pid_ = getpid();
};

// Holds the cache during one call. A second thread at the same time reads without it.
class ChunkLease {
public:
    explicit ChunkLease(SharedChunks* shared)
        : shared_(shared), chunks_(shared ? shared->acquire() : nullptr) {}
    ~ChunkLease() {
        if (chunks_) shared_->release();
    }
    ChunkLease(const ChunkLease&) = delete;
    ChunkLease& operator=(const ChunkLease&) = delete;

    ChunkCache* chunks() const { return chunks_; }

private:
    SharedChunks* shared_;
    ChunkCache* chunks_;
};

// The result of read_records(). fastload/_store/record.py has the dtype of rows.
struct ReadRecords {
    nb::object records;
    nb::bytes rows;
    nb::bytes starts;
    size_t rows_per_sample;  // 0 unless every sample has the same fields, items and roles
    nb::dict faults;         // position in the batch -> error
};

ReadRecords read_records(nb::list files, Int64Array shards, Int64Array ids, bool check_crc,
                         SharedChunks* cache) {
    if (shards.size() != ids.size())
        throw nb::value_error("read_records: expected as many shards as ids");
    const std::vector<const ShardFile*> open = open_files(files);
    nb::list held = hold_used_files(files, shards);
    RecordScan found;
    size_t n_rows;
    const ChunkLease lease(cache);
    {
        GilRelease released;
        found = scan_records(open, shards, ids, check_crc, lease.chunks());
        n_rows = rows_per_sample(found);
    }
    nb::dict faults;
    for (auto& [place, fault] : found.faults) faults[nb::int_(place)] = nb::str(fault.c_str());
    found.set->files = std::move(held);
    return {nb::cast(Records(found.set)), as_bytes(found.rows), as_bytes(found.starts), n_rows,
            faults};
}

// Returns descriptor, offset and size of each contiguous run of samples. Holds the files like
// read_records().
nb::bytes record_runs(nb::list files, Int64Array shards, Int64Array ids) {
    if (shards.size() != ids.size())
        throw nb::value_error("record_runs: expected as many shards as ids");
    const std::vector<const ShardFile*> open = open_files(files);
    const nb::list held = hold_used_files(files, shards);
    std::vector<ByteRun> runs;
    {
        GilRelease released;
        runs = find_runs(open, shards.data(), ids.data(), ids.size());
    }
    return as_bytes(runs);
}

void read_ahead(nb::handle runs) {
    const BufferView bytes(runs);
    if (bytes.size() % sizeof(ByteRun))
        throw nb::value_error("read_ahead: expected the bytes that record_runs returned");
    const ByteRun* first = reinterpret_cast<const ByteRun*>(bytes.data());
    GilRelease released;
    std::for_each(first, first + bytes.size() / sizeof(ByteRun), request_pages);
}

// May wait for the disk.
RecordPlace find_record(const ShardFile& file, uint64_t id, LeafPage& leaf) {
    std::string error;
    RecordPlace place;
    {
        GilRelease released;
        place = file.find(id, leaf, error);
    }
    if (!place.size) throw nb::key_error(error.c_str());
    return place;
}

nb::tuple record_place(const ShardFile& file, uint64_t id) {
    LeafPage leaf;
    const RecordPlace place = find_record(file, id, leaf);
    return nb::make_tuple(place.offset, place.size);
}

// Reads the record of a sample, without checks.
nb::object read_record(const ShardFile& file, uint64_t id) {
    LeafPage leaf;
    const RecordPlace place = find_record(file, id, leaf);
    std::string error;
    nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(place.size)));
    if (!result) throw nb::python_error();
    uint8_t* bytes = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(result.ptr()));
    if (place.bytes) {
        std::copy_n(place.bytes, place.size, bytes);
    } else {
        GilRelease released;
        file.read(place.offset, bytes, place.size, error);
    }
    if (!error.empty()) throw nb::key_error(error.c_str());
    return result;
}

}  // namespace

void bind_records(nb::module_& module) {
    module.attr("part_row_size") = sizeof(PartRow);
    nb::class_<ShardFile>(module, "ShardFile")
        .def(nb::init<int, size_t>(), nb::arg("descriptor"), nb::arg("size"))
        .def_prop_ro("entries", &ShardFile::entries)
        .def_prop_ro("descriptor", &ShardFile::descriptor)
        .def("find", &record_place, nb::arg("id"))
        .def("read", &read_record, nb::arg("id"));
    nb::class_<RecordExport>(module, "_RecordExport", nb::type_slots(record_export_slots));
    nb::class_<Records>(module, "Records")
        .def("__len__", &Records::size)
        .def("__getitem__", &record_at, nb::arg("place"))
        .def("__getitem__", &records_at, nb::arg("which"));
    nb::class_<SharedChunks>(module, "ChunkCache")
        .def(nb::init<size_t>(), nb::arg("capacity"))
        .def_prop_ro("capacity", &SharedChunks::capacity)
        .def("clear", [](SharedChunks& shared) {
            if (const ChunkLease lease(&shared); lease.chunks()) lease.chunks()->clear();
        });
    nb::class_<ReadRecords>(module, "ReadRecords")
        .def_ro("records", &ReadRecords::records)
        .def_ro("rows", &ReadRecords::rows)
        .def_ro("starts", &ReadRecords::starts)
        .def_ro("rows_per_sample", &ReadRecords::rows_per_sample)
        .def_ro("faults", &ReadRecords::faults);
    module.def("record_runs", &record_runs, nb::arg("files"), nb::arg("shards"), nb::arg("ids"));
    module.def("read_ahead", &read_ahead, nb::arg("runs"));
    module.def("read_records", &read_records, nb::arg("files"), nb::arg("shards"), nb::arg("ids"),
               nb::arg("check_crc") = true, nb::arg("cache").none() = nb::none());
}

}  // namespace fastload
