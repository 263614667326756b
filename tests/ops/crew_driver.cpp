// What a crew tells of its time when one of its threads does all the work, and the caller comes too late for any of it;
// and when the caller has to wait for a share that another has begun.
//
//     crew_driver        prints: seconds of each of three steps; whether the second crew was slower than one thread
#include <chrono>
#include <cstdio>
#include <thread>

#include "crew.h"
#include "stopwatch.h"

using namespace dgconv;
using namespace std::chrono_literals;

int main() {
    double seconds[3 * STAGES] = {};
    Program program{};
    program.step_count = 3, program.batch = 1;
    Stopwatch watch(program, seconds);
    Crew crew(2);
    const auto walk = [&](int rank) {
        for (int stage = 0; stage < 3; ++stage) {
            crew.run_stage(stage, rank, [](int, int) { std::this_thread::sleep_for(5ms); },
                           [&] { watch.complete(stage, stage, COMPUTING); });
        }
    };
    std::thread(walk, 1).join();
    walk(0);
    watch.sum_up();
    for (int step = 0; step < 3; ++step) std::printf("%.4f ", seconds[step * STAGES + COMPUTING]);

    Crew held(2);
    std::atomic<bool> is_held{false};
    const auto begin = Crew::Clock::now();
    std::thread other([&] {
        held.run_stage(0, 1, [&](int share, int) {
            if (share != 1) return;
            is_held = true;
            std::this_thread::sleep_for(500ms);
        }, [] {});
    });
    while (!is_held) std::this_thread::yield();
    held.run_stage(0, 0, [](int, int) {}, [] {});
    const auto taken = Crew::Clock::now() - begin;
    other.join();
    std::printf("%d %d\n", held.was_slower_than_one(taken), crew.was_slower_than_one(30ms));
}
