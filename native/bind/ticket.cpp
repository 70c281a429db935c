#include "bind/ticket.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "bind/records.h"

namespace nb = nanobind;

namespace fastload {
SourceViews::~SourceViews() {
    for (size_t i = 0; i < views_.size(); ++i) {
        if (i + kPrefetchDistance < views_.size())
            __builtin_prefetch(views_[i + kPrefetchDistance].obj, 1);
        PyBuffer_Release(&views_[i]);
    }
}

void SourceViews::add(PyObject* const* objects, size_t n) {
    views_.reserve(n);
    for (size_t i = 0; i < n; ++i) {
        if (i + kPrefetchDistance < n) __builtin_prefetch(objects[i + kPrefetchDistance], 1);
        Py_buffer view;
        if (PyObject_GetBuffer(objects[i], &view, PyBUF_SIMPLE)) throw nb::python_error();
        views_.push_back(view);
    }
}

Ticket::Ticket(nb::handle sources, std::vector<DecodeRequest> requests, const BatchOutput& output,
               Tensor memory)
    : memory_(std::move(memory)), pid_(getpid()) {
    batch = std::make_shared<DecodeBatch>(std::move(requests), spans(sources), output);
}

std::vector<SourceBytes> Ticket::spans(nb::handle sources) {
    std::vector<SourceBytes> spans;
    if (nb::isinstance<Records>(sources)) {
        records_ = nb::borrow(sources);
        const Records& records = *nb::inst_ptr<Records>(sources);
        spans.reserve(records.size());
        for (size_t i = 0; i < records.size(); ++i) {
            const StoredRecord& record = records[i];
            // A sample that was not found has no bytes.
            spans.push_back({record.complete() ? record.bytes : nullptr,
                             record.n_bytes ? record.size : 0, record});
        }
        return spans;
    }
    PyObject* list =
        PySequence_Fast(sources.ptr(), "sources: expected a sequence of bytes-like objects");
    if (!list) throw nb::python_error();
    nb::object owned = nb::steal(list);
    views_.add(PySequence_Fast_ITEMS(list), size_t(PySequence_Fast_GET_SIZE(list)));
    spans.reserve(views_.all().size());
    for (const Py_buffer& view : views_.all())
        spans.push_back({static_cast<const uint8_t*>(view.buf), size_t(view.len)});
    return spans;
}

Ticket::~Ticket() {
    if (!batch || is_forked_copy() || batch->done()) return;
    GilRelease released;
    batch->cancel();
}

bool Ticket::wait(std::optional<double> timeout_s) {
    if (is_forked_copy() && !batch->done())
        throw std::runtime_error(
            "the batch was submitted before a fork, in the parent process. Submit it again in this "
            "process.");
    using Clock = std::chrono::steady_clock;
    const double seconds = std::min(timeout_s.value_or(1e9), 1e9);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
    for (;;) {  // in slices of 50 ms, to handle Ctrl-C
        bool done;
        {
            GilRelease released;
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
            done = batch->wait_for(
                std::clamp(left, std::chrono::milliseconds(0), std::chrono::milliseconds(50)));
        }
        if (done) return true;
        if (PyErr_CheckSignals()) throw nb::python_error();
        if (Clock::now() >= end) return false;
    }
}

BatchResult Ticket::result() const {
    if (!batch->done())
        throw std::runtime_error("Ticket.result: the batch is not done. Call wait() first.");
    nb::dict reasons;
    for (size_t i = 0; i < batch->size(); ++i)
        if (batch->statuses()[i] != SampleStatus::kOk)
            reasons[nb::int_(i)] = nb::str(batch->reasons()[i].c_str());
    return {as_bytes(batch->statuses()), as_bytes(batch->times()), reasons};
}

void bind_ticket(nb::module_& module) {
    nb::class_<BatchResult>(module, "BatchResult")
        .def_ro("statuses", &BatchResult::statuses)
        .def_ro("times_ns", &BatchResult::times_ns)
        .def_ro("reasons", &BatchResult::reasons);
    nb::class_<Ticket>(module, "Ticket")
        .def("wait", &Ticket::wait, nb::arg("timeout_s").none() = nb::none())
        .def("result", &Ticket::result)
        .def_prop_ro("done", [](const Ticket& ticket) { return ticket.batch->done(); });
}

}  // namespace fastload
