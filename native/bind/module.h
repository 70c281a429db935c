// Shared by the bind_*.cpp files, each of which adds one part of the core to the Python module.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>

namespace fastload {

// A read-only view of any contiguous bytes-like object (bytes, memoryview of a shard, uint8 array);
// no copy. The object stays alive and locked while the view does.
class Bytes {
public:
    explicit Bytes(nanobind::handle object, bool writable = false) {
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
            throw nanobind::python_error();
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_;
};

// Lets go of the interpreter's lock while it lives. Not nanobind's: a thread that comes back while
// Python exits is ended there, by unwinding its stack (up to Python 3.13), and the first frame that
// lets no exception through, nanobind has some, ends the process with SIGABRT. Such a thread stays
// here until the process is gone, as Python itself has it from 3.14 on.
class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (const abi::__forced_unwind&) {
            for (;;) pause();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

void bind_jpeg(nanobind::module_& module);
void bind_decode(nanobind::module_& module);
void bind_numbers(nanobind::module_& module);
void bind_pack(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_record(nanobind::module_& module);
void bind_request(nanobind::module_& module);
void bind_ticket(nanobind::module_& module);
void bind_transform(nanobind::module_& module);
void bind_warp(nanobind::module_& module);

}  // namespace fastload
