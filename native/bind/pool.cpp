#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "bind/module.h"
#include "bind/output_tensor.h"
#include "bind/python_support.h"
#include "bind/ticket.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace fastload {
namespace {

// The Python class Pool. Its threads start with the first batch, and start again in a forked child.
class PythonPool {
public:
    explicit PythonPool(int threads) : threads_(check_threads(threads)) {
        std::lock_guard<std::mutex> lock(instances_mutex());
        instances().insert(this);
    }
    PythonPool(const PythonPool&) = delete;
    PythonPool& operator=(const PythonPool&) = delete;

    ~PythonPool() {
        {
            std::lock_guard<std::mutex> lock(instances_mutex());
            instances().erase(this);
        }
        close();
    }

    Ticket* submit(nb::handle sources, nb::handle requests, Tensor memory, bool planar, int color,
                   std::vector<int> fill, std::vector<float> mean, std::vector<float> std,
                   int bits) {
        if (closed_) throw std::runtime_error("Pool.submit: the pool is closed");
        const OutputOptions options{planar,          color,          std::move(fill),
                                    std::move(mean), std::move(std), bits};
        const BatchOutput output = make_batch_output(memory, options);
        auto ticket = std::make_unique<Ticket>(sources, copy_requests(requests, output.slots),
                                               output, std::move(memory));
        pool().submit(ticket->batch);
        return ticket.release();
    }

    // Loads the samples in this thread, one after another. Returns the seconds of the whole loop
    // and the seconds spent inside the samples. Benchmarks compare the overhead of a pool with it.
    static nb::tuple bare_loop(nb::handle sources, nb::handle requests, Tensor memory, bool planar,
                               int color, std::vector<int> fill, std::vector<float> mean,
                               std::vector<float> std, int bits) {
        const OutputOptions options{planar,          color,          std::move(fill),
                                    std::move(mean), std::move(std), bits};
        const BatchOutput output = make_batch_output(memory, options);
        Ticket ticket(sources, copy_requests(requests, output.slots), output, std::move(memory));
        static thread_local SampleLoader loader;
        double seconds, inside_ns = 0;
        {
            GilRelease released;
            const auto begin = std::chrono::steady_clock::now();
            ticket.batch->run_inline(loader);
            seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        }
        for (const StageTimes& times : ticket.batch->times())
            inside_ns += std::accumulate(times.begin(), times.end(), 0.0);
        return nb::make_tuple(seconds, inside_ns * 1e-9);
    }

    int threads() const { return threads_; }

    std::vector<size_t> in_flight(const Ticket& ticket) {
        if (!pool_ || pid_ != getpid()) return {};
        return pool_->in_flight(*ticket.batch);
    }

    void set_threads(int threads) {
        threads_ = check_threads(threads);
        if (!pool_ || pid_ != getpid()) return;
        try {
            GilRelease released;
            pool_->set_threads(threads);
        } catch (const std::runtime_error& error) {
            threads_ = pool_->threads();
            throw_value_error(error.what());
        }
    }

    void close() {
        closed_ = true;
        if (!pool_) return;
        if (pid_ != getpid()) {
            leak_parent_pool();
            return;
        }
        const std::shared_ptr<Pool> held = pool_;
        GilRelease released;
        held->close();
    }

    // Copies the pointers to the pools first. While this function waits for one pool, another
    // thread may drop the last reference to the Python object of the next one.
    static void close_all() {
        std::vector<std::shared_ptr<Pool>> pools;
        {
            std::lock_guard<std::mutex> lock(instances_mutex());
            for (PythonPool* each : instances()) {
                each->closed_ = true;
                if (each->pool_ && each->pid_ == getpid()) pools.push_back(each->pool_);
            }
        }
        GilRelease released;
        for (const auto& pool : pools) pool->close();
    }

private:
    static int check_threads(int threads) {
        if (threads < 1 || threads > 1024)
            throw_value_error("threads: expected 1 to 1024, found ", threads);
        return threads;
    }

    // Never destroyed, because a pool may be destroyed after static objects. The mutex is locked
    // only under the GIL, so it is never locked during a fork.
    static std::set<PythonPool*>& instances() {
        static auto* pools = new std::set<PythonPool*>;
        return *pools;
    }
    static std::mutex& instances_mutex() {
        static auto* mutex = new std::mutex;
        return *mutex;
    }

    static std::vector<DecodeRequest> copy_requests(nb::handle requests, int64_t slots) {
        BufferView bytes(requests);
        if (bytes.size() % sizeof(DecodeRequest))
            throw_value_error("requests: expected a multiple of ", sizeof(DecodeRequest),
                              " bytes (dtype REQUEST), found ", bytes.size());
        const size_t n = bytes.size() / sizeof(DecodeRequest);
        if (int64_t(n) > slots)
            throw_value_error("output: expected at least ", n, " slots, one per request, found ",
                              slots);
        std::vector<DecodeRequest> copy(n);
        if (n) std::memcpy(static_cast<void*>(copy.data()), bytes.data(), bytes.size());
        return copy;
    }

    Pool& pool() {
        if (pool_ && pid_ != getpid()) leak_parent_pool();
        if (pool_) return *pool_;
        try {
            pool_ = std::make_shared<Pool>(threads_);
        } catch (const std::runtime_error& error) {
            throw_value_error(error.what());
        }
        pid_ = getpid();
        return *pool_;
    }

    // Leaks the pool of the parent process: its threads and locks do not exist in this process.
    void leak_parent_pool() { (void)new std::shared_ptr<Pool>(std::move(pool_)); }

    std::shared_ptr<Pool> pool_;
    pid_t pid_ = 0;
    int threads_;
    bool closed_ = false;
};

}  // namespace

void bind_pool(nb::module_& module) {
    // A global loader may still own its pool at interpreter exit. That is not a leak.
    nb::set_leak_warnings(false);
    nb::class_<PythonPool>(module, "Pool")
        .def(nb::init<int>(), nb::arg("threads"))
        .def("submit", &PythonPool::submit, nb::arg("sources"), nb::arg("requests"),
             nb::arg("output").noconvert(), nb::kw_only(), nb::arg("planar"), nb::arg("color"),
             nb::arg("fill"), nb::arg("mean"), nb::arg("std"), nb::arg("bits"))
        .def_static("bare_loop", &PythonPool::bare_loop, nb::arg("sources"), nb::arg("requests"),
                    nb::arg("output").noconvert(), nb::kw_only(), nb::arg("planar"),
                    nb::arg("color"), nb::arg("fill"), nb::arg("mean"), nb::arg("std"),
                    nb::arg("bits"))
        .def("in_flight", &PythonPool::in_flight, nb::arg("ticket"))
        .def_prop_rw("threads", &PythonPool::threads, &PythonPool::set_threads)
        .def("close", &PythonPool::close);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&PythonPool::close_all));
}

}  // namespace fastload
