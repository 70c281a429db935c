#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "bind.h"
#include "jpeg_header.h"
#include "pool.h"

namespace nb = nanobind;

namespace fastload {
namespace {

using Tensor = nb::ndarray<>;

template <typename... Parts>
[[noreturn]] void wrong(const Parts&... parts) {
    std::string message;
    (message.append(parts), ...);
    throw nb::value_error(message.c_str());
}

std::string text(int64_t number) { return std::to_string(number); }

Dtype dtype_of(const Tensor& tensor) {
    if (tensor.dtype() == nb::dtype<uint8_t>()) return Dtype::kUint8;
    if (tensor.dtype() == nb::dtype<float>()) return Dtype::kFloat32;
    const auto dtype = tensor.dtype();
    if (dtype.bits == 16 && dtype.lanes == 1 && dtype.code == uint8_t(nb::dlpack::dtype_code::Float)) return Dtype::kFloat16;
    if (dtype.bits == 16 && dtype.lanes == 1 && dtype.code == uint8_t(nb::dlpack::dtype_code::Bfloat)) return Dtype::kBfloat16;
    wrong("output: expected dtype uint8, float32, float16 or bfloat16");
}

// Two items in one place would be written by two threads: each stride must reach over all that smaller ones cover.
void check_apart(const Tensor& tensor) {
    std::vector<std::pair<int64_t, int64_t>> axes;  // stride, size
    if (!tensor.size()) return;
    for (size_t i = 0; i < tensor.ndim(); ++i)
        if (tensor.shape(i) > 1) axes.emplace_back(std::abs(tensor.stride(i)), int64_t(tensor.shape(i)));
    std::sort(axes.begin(), axes.end());
    int64_t reach = 0;
    for (auto [stride, size] : axes) {
        if (stride <= reach) wrong("output: its strides make items overlap");
        reach += stride * (size - 1);
    }
}

struct OutputOptions {
    bool planar;
    int colour;
    std::vector<int> fill;
    std::vector<float> mean, std;
};

Output describe(const Tensor& tensor, const OutputOptions& options) {
    const int device = tensor.device_type();
    if (device != nb::device::cpu::value && device != nb::device::cuda_host::value) wrong("output: expected memory of the host");
    if (tensor.ndim() != 4) wrong("output: expected 4 axes (", options.planar ? "N, C, H, W" : "N, H, W, C", "), found ", text(int64_t(tensor.ndim())));
    check_apart(tensor);
    const size_t c = options.planar ? 1 : 3, y = options.planar ? 2 : 1, x = options.planar ? 3 : 2;
    Output output;
    output.dtype = dtype_of(tensor);
    const ptrdiff_t item = ptrdiff_t(output.item_size());
    output.memory = static_cast<uint8_t*>(tensor.data());
    output.slots = int64_t(tensor.shape(0));
    output.height = int64_t(tensor.shape(y));
    output.width = int64_t(tensor.shape(x));
    output.channels = int(std::min<size_t>(tensor.shape(c), 1000));
    output.slot_stride = ptrdiff_t(tensor.stride(0)) * item;
    output.row_stride = ptrdiff_t(tensor.stride(y)) * item;
    output.pixel_stride = ptrdiff_t(tensor.stride(x)) * item;
    output.channel_stride = ptrdiff_t(tensor.stride(c)) * item;
    if (options.colour < 0 || options.colour > int(Colour::kStored)) wrong("colour: unknown code ", text(options.colour));
    output.colour = Colour(options.colour);
    const int most = output.colour == Colour::kStored ? kMaxChannels : output.colour == Colour::kGray ? 1 : 3;
    const int least = output.colour == Colour::kStored ? 1 : most;
    if (output.channels < least || output.channels > most)
        wrong("output: expected ", text(least), least < most ? " to " + text(most) : std::string(), " channels for this colour, found ", text(output.channels));
    return output;
}

void set_levels(Output& output, const OutputOptions& options) {
    const size_t n = size_t(output.channels);
    if (options.fill.size() != n) wrong("fill: expected ", text(int64_t(n)), " levels, found ", text(int64_t(options.fill.size())));
    for (size_t i = 0; i < n; ++i) {
        if (options.fill[i] < 0 || options.fill[i] > 255) wrong("fill: expected levels of 0 to 255, found ", text(options.fill[i]));
        output.fill[i] = uint8_t(options.fill[i]);
    }
    if (output.dtype == Dtype::kUint8) return;
    if (options.mean.size() != n || options.std.size() != n) wrong("mean, std: expected ", text(int64_t(n)), " values each");
    for (size_t i = 0; i < n; ++i) {
        output.mean[i] = options.mean[i];
        output.std[i] = options.std[i];
        if (!std::isfinite(output.mean[i]) || !std::isfinite(output.std[i]) || output.std[i] == 0) wrong("mean, std: expected finite values, std not 0");
    }
}

template <typename Item>
nb::object as_array(const Item* items, size_t rows, size_t columns) {
    auto* copy = new Item[rows * columns + 1];
    if (rows * columns) std::memcpy(copy, items, rows * columns * sizeof(Item));
    nb::capsule owner(copy, [](void* memory) noexcept { delete[] static_cast<Item*>(memory); });
    if (columns == 1) return nb::cast(nb::ndarray<nb::numpy, Item, nb::ndim<1>>(copy, {rows}, owner));
    return nb::cast(nb::ndarray<nb::numpy, Item, nb::ndim<2>>(copy, {rows, columns}, owner));
}

// Read-only views of many objects in one piece of memory. Each object's head is a cache miss of its own where the sources are
// many and small: asked for some objects ahead they overlap.
class Views {
public:
    Views() = default;
    Views(const Views&) = delete;
    Views& operator=(const Views&) = delete;

    ~Views() {
        for (size_t i = 0; i < views_.size(); ++i) {
            if (i + kAhead < views_.size()) __builtin_prefetch(views_[i + kAhead].obj, 1);
            PyBuffer_Release(&views_[i]);
        }
    }

    void add(PyObject* const* objects, size_t n) {
        views_.reserve(n);
        for (size_t i = 0; i < n; ++i) {
            if (i + kAhead < n) __builtin_prefetch(objects[i + kAhead], 1);
            Py_buffer view;
            if (PyObject_GetBuffer(objects[i], &view, PyBUF_SIMPLE)) throw nb::python_error();
            views_.push_back(view);
        }
    }

    const std::vector<Py_buffer>& all() const { return views_; }

private:
    static constexpr size_t kAhead = 8;
    std::vector<Py_buffer> views_;
};

// Keeps the sources and the output alive, and unchanged in size, until the batch is done.
class Ticket {
public:
    Ticket(nb::handle sources, std::vector<Request> requests, const Output& output, Tensor memory) : memory_(std::move(memory)), pid_(getpid()) {
        PyObject* list = PySequence_Fast(sources.ptr(), "sources: expected a sequence of bytes-like objects");
        if (!list) throw nb::python_error();
        nb::object owned = nb::steal(list);
        views_.add(PySequence_Fast_ITEMS(list), size_t(PySequence_Fast_GET_SIZE(list)));
        std::vector<Source> spans;
        spans.reserve(views_.all().size());
        for (const Py_buffer& view : views_.all()) spans.push_back({static_cast<const uint8_t*>(view.buf), size_t(view.len), nullptr});
        batch = std::make_shared<Batch>(std::move(requests), std::move(spans), output);
    }

    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // The threads of a parent process are not here: there is nothing to wait for, and nobody writes.
    bool foreign() const { return pid_ != getpid(); }

    ~Ticket() {
        if (!batch || foreign() || batch->done()) return;
        nb::gil_scoped_release unlocked;
        batch->cancel();
    }

    bool wait(std::optional<double> timeout_s) {
        if (foreign() && !batch->done()) throw std::runtime_error("the batch was submitted before a fork, in the parent process: submit it here again");
        using Clock = std::chrono::steady_clock;
        const double seconds = std::min(timeout_s.value_or(1e9), 1e9);
        const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        for (;;) {  // in slices, so that Ctrl-C is answered
            bool done;
            {
                nb::gil_scoped_release unlocked;
                const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
                done = batch->wait_for(std::clamp(left, std::chrono::milliseconds(0), std::chrono::milliseconds(50)));
            }
            if (done) return true;
            if (PyErr_CheckSignals()) throw nb::python_error();
            if (Clock::now() >= end) return false;
        }
    }

    nb::tuple result() {
        if (!batch->done()) throw std::runtime_error("the batch is not done: wait() first");
        nb::dict reasons;
        for (size_t i = 0; i < batch->size(); ++i)
            if (batch->statuses()[i] != Status::kOk) reasons[nb::int_(i)] = nb::str(batch->reasons()[i].c_str());
        return nb::make_tuple(as_array(reinterpret_cast<const uint8_t*>(batch->statuses().data()), batch->size(), 1),
                              as_array(reinterpret_cast<const uint32_t*>(batch->times().data()), batch->size(), kStages), reasons);
    }

    std::shared_ptr<Batch> batch;

private:
    Views views_;
    Tensor memory_;
    pid_t pid_;
};

// The pool as Python sees it: its threads begin with the first batch, and begin anew in a forked child.
class PythonPool {
public:
    explicit PythonPool(int threads) : threads_(checked(threads)) {
        std::lock_guard<std::mutex> lock(all_mutex());
        all().insert(this);
    }
    PythonPool(const PythonPool&) = delete;
    PythonPool& operator=(const PythonPool&) = delete;

    ~PythonPool() {
        {
            std::lock_guard<std::mutex> lock(all_mutex());
            all().erase(this);
        }
        close();
    }

    Ticket* submit(nb::handle sources, nb::handle requests, Tensor memory, bool planar, int colour, std::vector<int> fill, std::vector<float> mean,
                   std::vector<float> std) {
        if (closed_) throw std::runtime_error("the decode pool is closed");
        const OutputOptions options{planar, colour, std::move(fill), std::move(mean), std::move(std)};
        Output output = describe(memory, options);
        set_levels(output, options);
        auto ticket = std::make_unique<Ticket>(sources, copied(requests, output.slots), output, std::move(memory));
        pool().submit(ticket->batch);
        return ticket.release();
    }

    // Seconds that a bare loop over the same samples takes, in this thread: what handing over to a pool is compared with.
    static double bare_loop(nb::handle sources, nb::handle requests, Tensor memory, bool planar, int colour, std::vector<int> fill, std::vector<float> mean,
                            std::vector<float> std) {
        const OutputOptions options{planar, colour, std::move(fill), std::move(mean), std::move(std)};
        Output output = describe(memory, options);
        set_levels(output, options);
        Ticket ticket(sources, copied(requests, output.slots), output, std::move(memory));
        static thread_local SampleLoader loader;
        nb::gil_scoped_release unlocked;
        const auto begin = std::chrono::steady_clock::now();
        ticket.batch->run_here(loader);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

    int threads() const { return threads_; }

    std::vector<size_t> under_way(const Ticket& ticket) {
        if (!pool_ || pid_ != getpid()) return {};
        return pool_->under_way(*ticket.batch);
    }

    void set_threads(int threads) {
        threads_ = checked(threads);
        if (!pool_ || pid_ != getpid()) return;
        nb::gil_scoped_release unlocked;
        pool_->set_threads(threads_);
    }

    void close() {
        closed_ = true;
        if (!pool_) return;
        if (pid_ != getpid()) {
            leave_to_parent();
            return;
        }
        const std::shared_ptr<Pool> held = pool_;
        nb::gil_scoped_release unlocked;
        held->close();
    }

    // Holds the pools themselves: while it waits for one, another thread may drop the last reference to the Python object of the next.
    static void close_all() {
        std::vector<std::shared_ptr<Pool>> pools;
        {
            std::lock_guard<std::mutex> lock(all_mutex());
            for (PythonPool* each : all()) {
                each->closed_ = true;
                if (each->pool_ && each->pid_ == getpid()) pools.push_back(each->pool_);
            }
        }
        nb::gil_scoped_release unlocked;
        for (const auto& pool : pools) pool->close();
    }

private:
    static int checked(int threads) {
        if (threads < 1 || threads > 1024) wrong("threads: expected 1 to 1024, found ", text(threads));
        return threads;
    }

    // Never destroyed: a pool may outlive them otherwise. The mutex is only taken under the GIL, so no fork finds it locked.
    static std::set<PythonPool*>& all() {
        static auto* pools = new std::set<PythonPool*>;
        return *pools;
    }
    static std::mutex& all_mutex() {
        static auto* mutex = new std::mutex;
        return *mutex;
    }

    static std::vector<Request> copied(nb::handle requests, int64_t slots) {
        Bytes bytes(requests);
        if (bytes.size() % sizeof(Request)) wrong("requests: expected items of ", text(sizeof(Request)), " bytes (backend.REQUEST)");
        const size_t n = bytes.size() / sizeof(Request);
        if (int64_t(n) > slots) wrong("output: ", text(slots), " slots for ", text(int64_t(n)), " requests");
        std::vector<Request> copy(n);
        if (n) std::memcpy(static_cast<void*>(copy.data()), bytes.data(), bytes.size());
        return copy;
    }

    Pool& pool() {
        if (pool_ && pid_ != getpid()) leave_to_parent();
        if (!pool_) {
            pool_ = std::make_shared<Pool>(threads_);
            pid_ = getpid();
        }
        return *pool_;
    }

    // Its threads and locks stayed in the parent: never destroyed here.
    void leave_to_parent() { (void)new std::shared_ptr<Pool>(std::move(pool_)); }

    std::shared_ptr<Pool> pool_;
    pid_t pid_ = 0;
    int threads_;
    bool closed_ = false;
};

struct Region {
    int x0, y0, x1, y1;
};

// Decodes into `rows`; why it failed, or nothing.
std::string decode_rows(JpegDecoder& decoder, const Bytes& bytes, int denominator, const Region& region, bool gray, bool plain, std::vector<uint8_t>& rows) {
    if (!decoder.open(bytes.data(), bytes.size())) return decoder.why();
    if (denominator < 1 || denominator > 8 || (denominator & (denominator - 1)) || region.x0 < 0 || region.y0 < 0 || region.x0 >= region.x1 ||
        region.y0 >= region.y1 || region.x1 > (decoder.width() + denominator - 1) / denominator ||
        region.y1 > (decoder.height() + denominator - 1) / denominator)
        return "the region is not inside the image";
    const auto pixels = gray || decoder.gray() ? JpegDecoder::Pixels::kGray : JpegDecoder::Pixels::kRgb;
    if (!decoder.start(denominator, pixels, region.x0, region.y0, region.x1, region.y1, plain)) return decoder.why();
    const size_t stride = size_t(decoder.columns()) * size_t(decoder.channels());
    rows.resize(stride * size_t(region.y1 - region.y0));
    return decoder.read(rows.data(), ptrdiff_t(stride), region.y1 - region.y0) && decoder.finish() ? "" : decoder.why();
}

// The pixels [x0, x1) x [y0, y1) of a JPEG decoded at 1/denominator: the seam by itself, for tests and for looking at images.
nb::object decode_region(nb::handle data, int denominator, int x0, int y0, int x1, int y1, bool gray) {
    Bytes bytes(data);
    JpegDecoder decoder;
    std::vector<uint8_t> rows;
    const Region region{x0, y0, x1, y1};
    std::string why;
    {
        nb::gil_scoped_release unlocked;
        why = decode_rows(decoder, bytes, denominator, region, gray, false, rows);
        if (!why.empty() && decoder.irregular()) why = decode_rows(decoder, bytes, denominator, region, gray, true, rows);
    }
    if (!why.empty()) throw BadJpeg(why);
    const size_t height = size_t(y1 - y0), width = size_t(x1 - x0), channels = size_t(decoder.channels());
    const size_t stride = size_t(decoder.columns()) * channels, skip = size_t(decoder.left()) * channels;
    auto* pixels = new uint8_t[height * width * channels];
    for (size_t y = 0; y < height; ++y) std::memcpy(pixels + y * width * channels, rows.data() + y * stride + skip, width * channels);
    nb::capsule owner(pixels, [](void* memory) noexcept { delete[] static_cast<uint8_t*>(memory); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>(pixels, {height, width, channels}, owner));
}

// Names, offsets and sizes of a request's members, for the numpy dtype in fastload/decode/backend.py.
nb::list request_members() {
    nb::list members;
#define MEMBER(name) members.append(nb::make_tuple(#name, offsetof(Request, name), sizeof(Request::name)))
    MEMBER(offset), MEMBER(size), MEMBER(index_offset), MEMBER(index_count), MEMBER(interval), MEMBER(source), MEMBER(x), MEMBER(y), MEMBER(w),
        MEMBER(h), MEMBER(out_w), MEMBER(out_h), MEMBER(pad_left), MEMBER(pad_top), MEMBER(raw_w), MEMBER(raw_h), MEMBER(codec), MEMBER(raw_channels),
        MEMBER(raw_bits), MEMBER(orientation), MEMBER(flip), MEMBER(filter), MEMBER(exact), MEMBER(check);
#undef MEMBER
    return members;
}

}  // namespace

void bind_decode(nb::module_& module) {
    nb::set_leak_warnings(false);  // at exit a global loader may still hold its pool: that is no leak of ours
    module.def("decode_region", &decode_region, nb::arg("data"), nb::arg("denominator"), nb::arg("x0"), nb::arg("y0"), nb::arg("x1"), nb::arg("y1"),
               nb::kw_only(), nb::arg("gray") = false);
    module.def("set_entropy_hook", &set_entropy_hook, nb::arg("wanted"));
    module.def("request_members", &request_members);
    module.attr("request_size") = sizeof(Request);
    nb::class_<Ticket>(module, "Ticket")
        .def("wait", &Ticket::wait, nb::arg("timeout_s").none() = nb::none())
        .def("result", &Ticket::result)
        .def_prop_ro("done", [](const Ticket& ticket) { return ticket.batch->done(); });
    nb::class_<PythonPool>(module, "Pool")
        .def(nb::init<int>(), nb::arg("threads"))
        .def("submit", &PythonPool::submit, nb::arg("sources"), nb::arg("requests"), nb::arg("output").noconvert(), nb::kw_only(), nb::arg("planar"),
             nb::arg("colour"), nb::arg("fill"), nb::arg("mean"), nb::arg("std"))
        .def_static("bare_loop", &PythonPool::bare_loop, nb::arg("sources"), nb::arg("requests"), nb::arg("output").noconvert(), nb::kw_only(),
                    nb::arg("planar"), nb::arg("colour"), nb::arg("fill"), nb::arg("mean"), nb::arg("std"))
        .def("under_way", &PythonPool::under_way, nb::arg("ticket"))
        .def_prop_rw("threads", &PythonPool::threads, &PythonPool::set_threads)
        .def("close", &PythonPool::close);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&PythonPool::close_all));
}

}  // namespace fastload
