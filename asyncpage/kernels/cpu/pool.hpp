// Threads that help with one job at a time: the caller cuts it into pieces, and whoever is free takes the next one.
//
// The caller never waits for a helper that has not begun: it takes pieces itself until none is left, and then waits for
// those that others hold. So a helper that is asleep, or whose core somebody else uses, costs nothing but its help.
// A helper looks for work for SPIN_US after the last, giving way to whoever wants its core, and then sleeps: products
// of one step follow one another within that time, steps of a server that idles do not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace asyncpage {

constexpr int64_t SPIN_US = 150;
constexpr int MOST_HELPERS = 255;

// Tells the processor that this thread only looks again and again.
inline void relax() {
#if defined(__aarch64__)
    asm volatile("yield");
#else
    __builtin_ia32_pause();
#endif
}

class Pool {
  public:
    using Run = void (*)(const void* job, int64_t piece);

    // Runs `run(job, piece)` for every piece below `pieces`, on `threads` threads at most; alone where another thread's
    // job is under way, or where the pieces are too many for the offer.
    void operator()(Run run, const void* job, int64_t pieces, int threads) {
        std::unique_lock<std::mutex> only(busy_, std::try_to_lock);
        if (threads <= 1 || pieces <= 1 || pieces >> 20 != 0 || !only.owns_lock()) {
            for (int64_t piece = 0; piece < pieces; ++piece) run(job, piece);
            return;
        }
        hire(threads - 1);
        run_ = run;
        job_ = job;
        limit_ = threads - 1;
        done_.store(0, std::memory_order_relaxed);
        generation_ = (generation_ + 1) & 0xffffff;
        // The fence of this store and that of a helper which says that it sleeps: one of the two sees the other.
        offer_.store(generation_ << 40 | static_cast<uint64_t>(pieces) << 20, std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> guard(sleep_);
            wake_.notify_all();
        }
        take();
        for (int turn = 0; done_.load(std::memory_order_acquire) != pieces; ++turn) {
            if (turn < 2000) relax(); else std::this_thread::yield();
        }
    }

  private:
    // Of the offer: 24 bits of which job it is, 20 of how many pieces it has, 20 of which comes next.
    static bool is_open(uint64_t offer) { return (offer & 0xfffff) < (offer >> 20 & 0xfffff); }

    void take() {
        uint64_t offer = offer_.load(std::memory_order_acquire);
        while (is_open(offer)) {
            // Whoever takes a piece knows that the job lasts until it says that the piece is done.
            if (!offer_.compare_exchange_weak(offer, offer + 1, std::memory_order_acq_rel)) continue;
            run_(job_, static_cast<int64_t>(offer & 0xfffff));
            done_.fetch_add(1, std::memory_order_acq_rel);
            offer = offer_.load(std::memory_order_acquire);
        }
    }

    void help(int number) {
        for (;;) {
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(SPIN_US);
            bool found = false;
            while (!found && std::chrono::steady_clock::now() < until) {
                for (int turn = 0; turn < 40 && !(found = wanted(number)); ++turn) relax();
                if (!found) std::this_thread::yield();
            }
            if (!found) {
                std::unique_lock<std::mutex> guard(sleep_);
                asleep_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(guard, [&] { return wanted(number); });
                asleep_.fetch_sub(1, std::memory_order_seq_cst);
            }
            take();
        }
    }

    bool wanted(int number) {
        return is_open(offer_.load(std::memory_order_seq_cst)) && number < limit_.load(std::memory_order_relaxed);
    }

    void hire(int helpers) {
        while (hired_ < helpers && hired_ < MOST_HELPERS) {
            try {
                std::thread(&Pool::help, this, hired_).detach();
            } catch (const std::system_error&) {
                return;  // the system gives no more threads: whoever is there does it all
            }
            ++hired_;
        }
    }

    std::mutex busy_;
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int> asleep_{0};
    std::atomic<int> limit_{0};
    int hired_ = 0;
    uint64_t generation_ = 0;
    Run run_ = nullptr;
    const void* job_ = nullptr;
    alignas(64) std::atomic<uint64_t> offer_{0};
    alignas(64) std::atomic<int64_t> done_{0};
};

// Never destroyed: its helpers outlive what ends a process in order.
inline Pool& pool() {
    static Pool* one = new Pool;
    return *one;
}

}  // namespace asyncpage
