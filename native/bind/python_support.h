// Helpers of the bindings: buffers, the GIL, errors, bytes.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace fastload {

// A view of any contiguous bytes-like object (bytes, memoryview of a shard, uint8 array), without a
// copy. The view keeps the object alive and its buffer locked.
class BufferView {
public:
    explicit BufferView(nanobind::handle object, bool writable = false) {
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
            throw nanobind::python_error();
    }
    ~BufferView() { PyBuffer_Release(&view_); }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;

    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_;
};

// Releases the GIL for its lifetime. This replaces nanobind::gil_scoped_release: up to Python 3.13,
// a thread that reacquires the GIL during interpreter exit is ended by unwinding its stack, and the
// first noexcept frame (nanobind has some) then aborts the process with SIGABRT. Here such a thread
// sleeps until the process ends, as in Python 3.14.
class GilRelease {
public:
    GilRelease() : state_(PyEval_SaveThread()) {}
    ~GilRelease() {
        try {
            PyEval_RestoreThread(state_);
        } catch (const abi::__forced_unwind&) {
            for (;;) pause();
        }
    }
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

private:
    PyThreadState* state_;
};

// Throws a Python ValueError. The message is the concatenation of strings and numbers.
template <typename... Parts>
[[noreturn]] void throw_value_error(const Parts&... parts) {
    std::string message;
    const auto append = [&message](const auto& part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
            message += std::to_string(part);
        else
            message += part;
    };
    (append(parts), ...);
    throw nanobind::value_error(message.c_str());
}

inline nanobind::bytes as_bytes(const uint8_t* data, size_t size) {
    return nanobind::bytes(reinterpret_cast<const char*>(data), size);
}

template <typename Item>
nanobind::bytes as_bytes(const std::vector<Item>& items) {
    return as_bytes(reinterpret_cast<const uint8_t*>(items.data()), items.size() * sizeof(Item));
}

}  // namespace fastload
