// What programs share that time kernels of two sides: a case of the command line, its failures and its line of JSON.
//   latency SCOPE BYTES ROUNDS [together]   both put and signal in turns, as one thread, a warp or a block
//   bandwidth BYTES ROUNDS BLOCKS           blocks put together
//   rate THREADS OPERATIONS                 each thread writes words
#pragma once
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr uint64_t WARM_UP = 20;
constexpr unsigned BLOCK = 512;
// Memory begins with the flag that the other sets, and the bytes to send; the bytes that the other writes follow.
constexpr uint64_t OUTBOX = 128;

__host__ __device__ inline uint64_t inbox(uint64_t bytes)
{
    return OUTBOX + (bytes + 127) / 128 * 128;
}

__device__ inline uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

[[noreturn]] inline void fail(const char *what, const char *why)
{
    std::printf("{\"failed\": \"%s: %s\"}\n", what, why);
    std::exit(1);
}

inline void expect(cudaError_t status)
{
    if (status != cudaSuccess) fail("CUDA", cudaGetErrorString(status));
}

struct Case {
    bool plays, pours, together;
    char scope;  // t, w or b
    uint64_t bytes, rounds, blocks, threads;

    Case(int count, char **values)
    {
        auto number = [&](int at) { return at < count ? std::strtoull(values[at], nullptr, 10) : 0; };
        plays = std::strcmp(values[1], "latency") == 0;
        pours = std::strcmp(values[1], "bandwidth") == 0;
        together = plays && count > 5;
        scope = values[2][0];
        threads = number(2);
        blocks = number(4);
        rounds = plays ? number(4) : number(3);
        bytes = plays ? number(3) : pours ? number(2) : threads * 8;
    }

    // The grid and the block of threads that write words.
    unsigned words_grid() const
    {
        return (unsigned)(threads + 255) / 256;
    }

    unsigned words_block() const
    {
        return threads < 256 ? (unsigned)threads : 256;
    }

    // Bytes that blocks pour, each as many.
    uint64_t poured() const
    {
        return bytes / blocks * blocks;
    }

    // Returns the seconds of kernels that `launch` starts with their number of rounds.
    template <typename Launch> double seconds(Launch launch) const
    {
        float ms = 0;
        for (uint64_t some : {WARM_UP, rounds}) {
            cudaEvent_t began, ended;
            expect(cudaEventCreate(&began));
            expect(cudaEventCreate(&ended));
            expect(cudaEventRecord(began));
            launch(some);
            expect(cudaGetLastError());
            expect(cudaEventRecord(ended));
            expect(cudaEventSynchronize(ended));
            expect(cudaEventElapsedTime(&ms, began, ended));
        }
        return ms / 1e3;
    }

    // `took` are nanoseconds if it plays, otherwise seconds.
    void say(int gpus, double took, bool right) const
    {
        auto number = [](uint64_t of) { return (unsigned long long)of; };
        std::printf("{\"gpus\": %d, ", gpus);
        if (plays) {
            std::printf("\"bytes\": %llu, \"one_way_ns\": %.1f", number(bytes), took / (2.0 * (double)rounds));
        } else if (pours) {
            double each_s = (double)bytes * (double)rounds / took;
            std::printf("\"bytes\": %llu, \"blocks\": %llu, \"gigabytes_a_second\": %.2f", number(bytes), number(blocks), each_s / 1e9);
        } else {
            std::printf("\"threads\": %llu, \"operations_a_second\": %.0f", number(threads), (double)threads * (double)rounds / took);
        }
        std::printf(", \"right\": %s}\n", right ? "true" : "false");
    }
};

inline bool has_come(const char *at, int value, uint64_t bytes)
{
    std::vector<char> copy(bytes);
    expect(cudaMemcpy(copy.data(), at, bytes, cudaMemcpyDefault));
    for (char one : copy)
        if (one != value) return false;
    return true;
}

// Runs both processes: the second gets what the first makes, before either uses CUDA.
template <typename Id, typename Make, typename Run> int in_two_processes(Id id, Make make, Run run)
{
    int ways[2];
    if (pipe(ways) != 0) return 3;
    pid_t child = fork();
    if (child == 0) return read(ways[0], &id, sizeof id) == (ssize_t)sizeof id ? run(1, id) : 3;
    make(id);
    if (write(ways[1], &id, sizeof id) != (ssize_t)sizeof id) return 3;
    int ended = run(0, id), status = 0;
    std::fflush(stdout);
    waitpid(child, &status, 0);
    return ended != 0 ? ended : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
