// How the threads of one run share its work.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace dgconv {

// The work comes in stages, each cut into as many shares as there are threads. A thread takes a share whenever it has
// none: if the system has put another one aside, it does that one's share too. A stage begins when the one before it is
// complete.
class Crew {
   public:
    explicit Crew(int threads) : shares(threads) {}

    int threads() const { return shares; }

    // Called by every thread, for stage 0, 1, 2, ... Returns when the stage is complete.
    template <class Body>
    void run_stage(int64_t stage, Body body) {
        const int64_t end = (stage + 1) * shares;
        int64_t ticket = taken.load(std::memory_order_relaxed);
        while (ticket < end) {
            if (!taken.compare_exchange_weak(ticket, ticket + 1, std::memory_order_relaxed)) continue;
            body(int(ticket - stage * shares), shares);
            done.fetch_add(1, std::memory_order_acq_rel);
            ticket = taken.load(std::memory_order_relaxed);
        }
        for (int spins = 0; done.load(std::memory_order_acquire) < end; ++spins) {
            if (spins < SPINS)
                pause();
            else
                std::this_thread::yield();
        }
    }

   private:
    static constexpr int SPINS = 200;  // a few microseconds; then whoever is waited for may need the processor

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const int shares;
    alignas(64) std::atomic<int64_t> taken{0};
    alignas(64) std::atomic<int64_t> done{0};
};

}  // namespace dgconv
