// NVSHMEM between two processes, one PE each: in every round both put to the other and signal, wait for the other's, and
// add to a counter there; then the host looks at what came. Prints "right".
//   nvshmem_put PE FILE
//   nvshmem_put PE FILE BYTES ROUNDS     a thread of each puts and signals in turns, too: nanoseconds of one way
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

constexpr int WORDS = 1000;
constexpr int ROUNDS = 3;
constexpr uint64_t WARM_UP = 20;

static void must(bool is, const char *what)
{
    if (is) return;
    std::printf("%s\n", what);
    std::exit(1);
}

static void expect(cudaError_t status)
{
    must(status == cudaSuccess, cudaGetErrorString(status));
}

__global__ void play(int other, int *inbox, const int *outbox, uint64_t *flag, uint64_t *counter, uint64_t round)
{
    nvshmem_putmem_signal(inbox, outbox, WORDS * sizeof(int), flag, round, NVSHMEM_SIGNAL_SET, other);
    nvshmem_uint64_atomic_add(counter, round, other);
    nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, round);
    nvshmem_quiet();
}

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// The first half of the memory goes to the other's second half.
__global__ void turns(int me, char *memory, uint64_t *flag, uint64_t bytes, uint64_t rounds, uint64_t *out)
{
    uint64_t began = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = now_ns();
        for (int turn = 0; turn < 2; ++turn) {
            if (turn == me) nvshmem_putmem_signal_nbi(memory + bytes, memory, bytes, flag, round, NVSHMEM_SIGNAL_SET, 1 - me);
            else nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, round);
        }
    }
    *out = now_ns() - began;
    nvshmem_quiet();
}

// The id of both, which the first makes and the other finds in a file.
static nvshmemx_uniqueid_t met(int me, const std::string &file)
{
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (me == 0) {
        must(nvshmemx_get_uniqueid(&id) == 0, "nvshmemx_get_uniqueid");
        std::FILE *fresh = std::fopen((file + ".new").c_str(), "wb");
        must(fresh && std::fwrite(&id, sizeof id, 1, fresh) == 1 && std::fclose(fresh) == 0, "the file of the id");
        must(std::rename((file + ".new").c_str(), file.c_str()) == 0, "the file of the id");
        return id;
    }
    std::FILE *made;
    while (!(made = std::fopen(file.c_str(), "rb"))) usleep(10000);
    must(std::fread(&id, sizeof id, 1, made) == 1, "the file of the id");
    return id;
}

static int value(int of, int round, int at)
{
    return of * 1000000 + round * 10000 + at;
}

static void time_turns(int me, uint64_t bytes, uint64_t rounds)
{
    char *memory = (char *)nvshmem_malloc(2 * bytes);
    uint64_t *flag = (uint64_t *)nvshmem_calloc(1, 8), *out;
    expect(cudaMemset(memory, me + 1, 2 * bytes));
    expect(cudaHostAlloc((void **)&out, sizeof *out, cudaHostAllocMapped));
    expect(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    turns<<<1, 1>>>(me, memory, flag, bytes, rounds, out);
    expect(cudaDeviceSynchronize());
    nvshmem_barrier_all();
    std::vector<char> came(bytes);
    expect(cudaMemcpy(came.data(), memory + bytes, bytes, cudaMemcpyDeviceToHost));
    for (char one : came) must(one == 2 - me, "a byte that was put in turns is wrong");
    std::printf("{\"bytes\": %llu, \"rounds\": %llu, \"one_way_ns\": %.1f}\n", (unsigned long long)bytes, (unsigned long long)rounds,
                (double)*out / (2.0 * (double)rounds));
}

int main(int count, char **values)
{
    must(count == 3 || count == 5, "nvshmem_put PE FILE [BYTES ROUNDS]");
    // NVSHMEM writes lines of its log between ours, some to stderr.
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    int me = std::atoi(values[1]), other = 1 - me, words[WORDS];
    expect(cudaSetDevice(me));
    nvshmemx_uniqueid_t id = met(me, values[2]);
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(me, 2, &id, &attributes);
    must(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0, "nvshmemx_init_attr");
    int *inbox = (int *)nvshmem_malloc(sizeof words), *outbox = (int *)nvshmem_malloc(sizeof words);
    uint64_t *flag = (uint64_t *)nvshmem_calloc(1, 8), *counter = (uint64_t *)nvshmem_calloc(1, 8), sum = 0;
    for (int round = 1; round <= ROUNDS; ++round) {
        for (int at = 0; at < WORDS; ++at) words[at] = value(me, round, at);
        expect(cudaMemcpy(outbox, words, sizeof words, cudaMemcpyHostToDevice));
        nvshmem_barrier_all();
        play<<<1, 1>>>(other, inbox, outbox, flag, counter, round);
        expect(cudaDeviceSynchronize());
        expect(cudaMemcpy(words, inbox, sizeof words, cudaMemcpyDeviceToHost));
        for (int at = 0; at < WORDS; ++at) must(words[at] == value(other, round, at), "a word is wrong");
        nvshmem_barrier_all();
    }
    expect(cudaMemcpy(&sum, counter, sizeof sum, cudaMemcpyDeviceToHost));
    must(sum == ROUNDS * (ROUNDS + 1) / 2, "the counter is wrong");
    if (count == 5) time_turns(me, std::strtoull(values[3], nullptr, 10), std::strtoull(values[4], nullptr, 10));
    std::puts("right");
    nvshmem_finalize();
    return 0;
}
