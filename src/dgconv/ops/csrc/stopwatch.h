// Where the time of a run goes, whichever of its threads do the work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "program.h"

namespace dgconv {

// A stage takes from the end of the one before it to its own, which the thread notes that completes it. No thread by
// itself could tell: the system may put it aside while others do its shares.
class Stopwatch {
   public:
    using Clock = std::chrono::steady_clock;

    Stopwatch(const Program& program, double* seconds)
        : seconds(seconds), begin(Clock::now()), stages(seconds ? MOST_STAGES * program.batch * program.step_count : 0) {}

    bool runs() const { return seconds; }

    void complete(int64_t stage, int64_t step, Stage kind) {
        if (!runs()) return;
        stages[stage].end = Clock::now();
        stages[stage].step = step;
        stages[stage].kind = kind;
    }

    // The stage of a gate has two parts. What each thread spent on them tells how to divide it.
    void spent(int64_t stage, Clock::duration generating, Clock::duration selecting) {
        stages[stage].generating += generating.count();
        stages[stage].selecting += selecting.count();
    }

    // After the threads are done.
    void sum_up() const {
        Clock::time_point before = begin;
        for (const Noted& noted : stages) {
            if (noted.step < 0) break;
            const double taken = std::chrono::duration<double>(noted.end - before).count();
            const double generating = double(noted.generating), both = generating + double(noted.selecting);
            const double of_generator = both > 0 ? taken * generating / both : 0;
            double* const of_step = seconds + noted.step * STAGES;
            of_step[GENERATING] += of_generator;
            of_step[noted.kind] += taken - of_generator;
            before = noted.end;
        }
    }

   private:
    static constexpr int64_t MOST_STAGES = 4;  // of a step: pooling, the gate, folding, computing; of bytes, for each image

    struct Noted {
        Clock::time_point end;
        int64_t step = -1;
        Stage kind = COMPUTING;
        std::atomic<int64_t> generating{0}, selecting{0};
    };

    double* const seconds;  // [steps, STAGES], or null
    const Clock::time_point begin;
    std::vector<Noted> stages;
};

}  // namespace dgconv
