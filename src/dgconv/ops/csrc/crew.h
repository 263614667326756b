// How the threads of one run share its work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace dgconv {

// How many of so many threads can be had. A process that was forked by a thread which had others working for it does
// not have those, and OpenMP would wait for them for ever: there it is one.
inline int threads_to_be_had(int threads) {
    static std::atomic<int64_t> forks{0};  // since the process at the root
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(registered);
#endif
    static thread_local int64_t forks_before_first = -1;  // use of more than one thread
    if (threads == 1) return 1;
    if (forks_before_first < 0) forks_before_first = forks;
    return forks_before_first == forks ? threads : 1;
}

// The work comes in stages, each cut into as many shares as there are threads. A thread does its own, in whose part of
// the data it was busy before, and then whatever nobody has begun: if the system has put another thread aside, also
// that one's. A stage begins when the one before it is complete.
class Crew {
   public:
    using Clock = std::chrono::steady_clock;

    explicit Crew(int threads) : shares(threads), next_stages(threads) {}

    int threads() const { return shares; }

    // Called by every thread, for stage 0, 1, 2, ... Returns when the stage is complete; one thread, whichever
    // completes it, calls `complete`.
    template <class Body, class Complete>
    void run_stage(int64_t stage, int rank, Body body, Complete complete) {
        const int64_t end = (stage + 1) * shares;
        for (int turn = 0; turn < shares; ++turn) {
            const int share = (rank + turn) % shares;
            if (!take(share, stage)) continue;
            body(share, shares);
            if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == end) complete();
        }
        const auto is_complete = [&] { return done.load(std::memory_order_acquire) >= end; };
        for (int spins = 0; spins < SPINS; ++spins, pause()) {
            if (is_complete()) return;
        }
        const Clock::time_point begin = Clock::now();
        while (!is_complete()) std::this_thread::yield();
        if (rank == 0) waited += Clock::now() - begin;
    }

    // Whether the first thread, which the caller waits for, waited for others so long that by itself it would have been
    // done sooner: others may need the processors. Of a run that took so long, in all.
    bool was_slower_than_one(Clock::duration taken) const { return waited * shares > taken * (shares - 1); }

    // What else the first thread waited for: that the others begin, and end.
    void add_wait(Clock::duration time) { waited += time; }

   private:
    static constexpr int SPINS = 200;  // a few microseconds; then whoever is waited for may need the processor

    struct alignas(64) NextStage {
        std::atomic<int64_t> number{0};
    };

    bool take(int share, int64_t stage) {
        std::atomic<int64_t>& next = next_stages[share].number;
        return next.load(std::memory_order_relaxed) == stage &&
               next.compare_exchange_strong(stage, stage + 1, std::memory_order_relaxed);
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const int shares;
    std::vector<NextStage> next_stages;  // of each share: the first in which nobody has begun it
    alignas(64) std::atomic<int64_t> done{0};
    alignas(64) Clock::duration waited{0};
};

}  // namespace dgconv
