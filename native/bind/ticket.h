// A batch under way, as Python holds it.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "bind/output_tensor.h"
#include "bind/python_support.h"
#include "pool/pool.h"

namespace fastload {

// Read-only views of many objects in one piece of memory. Each object's head is a cache miss of its
// own where the sources are many and small: asked for some objects ahead they overlap.
class SourceViews {
public:
    SourceViews() = default;
    SourceViews(const SourceViews&) = delete;
    SourceViews& operator=(const SourceViews&) = delete;
    ~SourceViews();

    void add(PyObject* const* objects, size_t n);
    const std::vector<Py_buffer>& all() const { return views_; }

private:
    static constexpr size_t kAhead = 8;
    std::vector<Py_buffer> views_;
};

// Of each slot its status (uint8) and the nanoseconds of its stages (uint32), as bytes: an array
// from nanobind would call numpy, in Python. Of each failed slot the reason.
struct BatchResult {
    nanobind::bytes statuses, times_ns;
    nanobind::dict reasons;
};

// Keeps the sources and the output alive, and unchanged in size, until the batch is done. Sources:
// Records, or a sequence of bytes-like objects.
class Ticket {
public:
    Ticket(nanobind::handle sources, std::vector<DecodeRequest> requests, const BatchOutput& output,
           Tensor memory);
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // True once the batch is done; false after a timeout.
    bool wait(std::optional<double> timeout_s);
    // Once the batch is done.
    BatchResult result() const;

    std::shared_ptr<DecodeBatch> batch;

private:
    // The threads of a parent process are not here: there is nothing to wait for, and nobody
    // writes.
    bool foreign() const { return pid_ != getpid(); }
    std::vector<SourceBytes> spans(nanobind::handle sources);

    nanobind::object records_;
    SourceViews views_;
    Tensor memory_;
    pid_t pid_;
};

}  // namespace fastload
