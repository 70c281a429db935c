// A batch in flight, as a Python object.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "bind/output_tensor.h"
#include "bind/python_support.h"
#include "pool/pool.h"

namespace fastload {

// Read-only views of many Python objects. With many small sources, the header of each object is a
// cache miss. Prefetching some objects ahead overlaps the misses.
class SourceViews {
public:
    SourceViews() = default;
    SourceViews(const SourceViews&) = delete;
    SourceViews& operator=(const SourceViews&) = delete;
    ~SourceViews();

    void add(PyObject* const* objects, size_t n);
    const std::vector<Py_buffer>& all() const { return views_; }

private:
    static constexpr size_t kPrefetchDistance = 8;
    std::vector<Py_buffer> views_;
};

// Per slot its status (uint8) and the nanoseconds of its stages (uint32), as bytes: creating an
// array through nanobind would call NumPy in Python. `reasons` has the errors of failed slots.
struct BatchResult {
    nanobind::bytes statuses, times_ns;
    nanobind::dict reasons;
};

// Keeps the sources and the output alive, and their buffers locked, until the batch is done.
// Sources are Records or a sequence of bytes-like objects.
class Ticket {
public:
    Ticket(nanobind::handle sources, std::vector<DecodeRequest> requests, const BatchOutput& output,
           Tensor memory);
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // Returns false after the timeout.
    bool wait(std::optional<double> timeout_s);
    // Throws std::runtime_error if the batch is not done.
    BatchResult result() const;

    std::shared_ptr<DecodeBatch> batch;

private:
    // True in a forked child. The decode threads of the parent do not exist here, so nothing writes
    // to the batch and nothing completes it.
    bool is_forked_copy() const { return pid_ != getpid(); }
    std::vector<SourceBytes> spans(nanobind::handle sources);

    nanobind::object records_;
    SourceViews views_;
    Tensor memory_;
    pid_t pid_;
};

}  // namespace fastload
