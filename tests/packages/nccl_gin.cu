// NCCL's GIN between two processes, one rank each, by kernels of its device interface: in every round both put to the
// other and signal, wait for the other's signals, and flush; then the host looks at what came. Prints "right".
//   nccl_gin RANK FILE
//   nccl_gin RANK FILE BYTES ROUNDS     a thread of each puts and signals in turns, too: nanoseconds of one way
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

constexpr int RANKS = 2;
constexpr int WORDS = 1000;
constexpr int ROUNDS = 3;
// Numbers of signals: of a single put, and of the words that warps put.
constexpr int OF_PUT = 0, OF_WORDS = 1, SIGNALS = 2;
constexpr int COUNTERS = 1;
constexpr int THREADS = 64;
constexpr uint64_t WARM_UP = 20;

// The window of a rank, which is in memory of its GPU.
struct Window {
    uint32_t outbox[WORDS], inbox[WORDS], got[WORDS];
    uint64_t values[THREADS];
};

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

static void expect(ncclResult_t status, const char *what)
{
    if (status != ncclSuccess) std::printf("%s: %s: ", what, ncclGetErrorString(status));
    must(status == ncclSuccess, ncclGetLastError(nullptr));
}
#define NCCL(call) expect(call, #call)

static __host__ __device__ uint64_t value(int of, int round, int at)
{
    return uint64_t(of + 1) * 1000000 + round * 10000 + at;
}

__global__ void play(ncclDevComm comm, ncclWindow_t window, int round)
{
    ncclGin gin(comm, 0);
    ncclTeam world = ncclTeamWorld(comm);
    int other = 1 - comm.rank;
    // The other has looked at what came in the round before.
    ncclGinBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0);
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
    if (threadIdx.x == 0) {
        gin.put(world, other, window, offsetof(Window, inbox), window, offsetof(Window, outbox), sizeof Window::outbox,
                ncclGin_WeakSignalInc{OF_PUT}, ncclGin_WeakCounterInc{0});
        gin.waitCounter(ncclCoopThread(), 0, round);
    }
    gin.putValue(world, other, window, offsetof(Window, values) + 8 * threadIdx.x, value(comm.rank, round, threadIdx.x));
    gin.signal(world, other, ncclGin_StrongSignalAdd{OF_WORDS, uint64_t(round)});
    gin.flush(ncclCoopCta());
    gin.waitSignal(ncclCoopCta(), OF_PUT, round);
    gin.waitSignal(ncclCoopCta(), OF_WORDS, uint64_t(THREADS) * round * (round + 1) / 2);
    if (threadIdx.x == 0)
        gin.get(world, other, window, offsetof(Window, outbox), window, offsetof(Window, got), sizeof Window::got);
    gin.flush(ncclCoopCta());
    // The other has got what it gets, and is told so before this side's queues may end.
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
    gin.flush(ncclCoopCta());
}

__global__ void meet(ncclDevComm comm)
{
    ncclGin gin(comm, 0);
    ncclGinBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0);
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
    gin.flush(ncclCoopCta());
}

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// The first half of the window goes to the other's second half. `before` signals have come already.
__global__ void turns(ncclDevComm comm, ncclWindow_t window, uint64_t bytes, uint64_t rounds, uint64_t before, uint64_t *out)
{
    ncclGin gin(comm, 0);
    ncclTeam world = ncclTeamWorld(comm);
    uint64_t began = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = now_ns();
        for (int turn = 0; turn < RANKS; ++turn) {
            if (turn == comm.rank) gin.put(world, 1 - comm.rank, window, bytes, window, 0, bytes, ncclGin_WeakSignalInc{OF_PUT});
            else gin.waitSignal(ncclCoopThread(), OF_PUT, before + round);
        }
    }
    *out = now_ns() - began;
    gin.flush(ncclCoopThread());
}

// The number of the communicator, which the first makes and the other finds in a file.
static ncclUniqueId met(int rank, const std::string &file)
{
    ncclUniqueId id;
    if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        std::FILE *fresh = std::fopen((file + ".new").c_str(), "wb");
        must(fresh && std::fwrite(&id, sizeof id, 1, fresh) == 1 && std::fclose(fresh) == 0, "the file of the number");
        must(std::rename((file + ".new").c_str(), file.c_str()) == 0, "the file of the number");
        return id;
    }
    std::FILE *made;
    while (!(made = std::fopen(file.c_str(), "rb"))) usleep(10000);
    must(std::fread(&id, sizeof id, 1, made) == 1, "the file of the number");
    return id;
}

// Times turns with a window of their own.
static void time_turns(ncclComm_t comm, const ncclDevComm &device, int rank, uint64_t bytes, uint64_t rounds)
{
    char *memory;
    uint64_t *out;
    NCCL(ncclMemAlloc((void **)&memory, 2 * bytes));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, 2 * bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    expect(cudaMemset(memory, rank + 1, 2 * bytes));
    expect(cudaHostAlloc((void **)&out, sizeof *out, cudaHostAllocMapped));
    // The other's memory is set, too. A driver may load the next kernel's code only while none runs: it would wait for this
    // one, and the adapter's copies for it.
    meet<<<1, THREADS>>>(device);
    expect(cudaDeviceSynchronize());
    turns<<<1, 1>>>(device, window, bytes, rounds, ROUNDS, out);
    expect(cudaDeviceSynchronize());
    std::vector<char> came(bytes);
    expect(cudaMemcpy(came.data(), memory + bytes, bytes, cudaMemcpyDeviceToHost));
    for (char one : came) must(one == RANKS - rank, "a byte that was put in turns is wrong");
    std::printf("{\"bytes\": %llu, \"rounds\": %llu, \"one_way_ns\": %.1f}\n", (unsigned long long)bytes, (unsigned long long)rounds,
                (double)*out / (2.0 * (double)rounds));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
}

int main(int count, char **values)
{
    must(count == 3 || count == 5, "nccl_gin RANK FILE [BYTES ROUNDS]");
    int rank = std::atoi(values[1]), other = 1 - rank;
    expect(cudaSetDevice(0));
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, RANKS, met(rank, values[2]), rank));
    Window *memory;
    NCCL(ncclMemAlloc((void **)&memory, sizeof(Window)));
    ncclWindow_t window;
    NCCL(ncclCommWindowRegister(comm, memory, sizeof(Window), &window, NCCL_WIN_COLL_SYMMETRIC));
    ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    wanted.ginContextCount = 1;
    wanted.ginSignalCount = SIGNALS;
    wanted.ginCounterCount = COUNTERS;
    wanted.worldGinBarrierCount = 1;
    wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    ncclDevComm device;
    NCCL(ncclDevCommCreate(comm, &wanted, &device));
    for (int round = 1; round <= ROUNDS; ++round) {
        std::vector<Window> here(1);
        for (int at = 0; at < WORDS; ++at) here[0].outbox[at] = value(rank, round, at);
        expect(cudaMemcpy(memory->outbox, here[0].outbox, sizeof here[0].outbox, cudaMemcpyHostToDevice));
        play<<<1, THREADS>>>(device, window, round);
        expect(cudaDeviceSynchronize());
        expect(cudaMemcpy(&here[0], memory, sizeof(Window), cudaMemcpyDeviceToHost));
        for (int at = 0; at < WORDS; ++at) {
            must(here[0].inbox[at] == value(other, round, at), "a word that was put is wrong");
            must(here[0].got[at] == value(other, round, at), "a word that was got is wrong");
        }
        for (int at = 0; at < THREADS; ++at) must(here[0].values[at] == value(other, round, at), "a value is wrong");
    }
    if (count == 5) time_turns(comm, device, rank, std::strtoull(values[3], nullptr, 10), std::strtoull(values[4], nullptr, 10));
    NCCL(ncclDevCommDestroy(comm, &device));
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
    std::puts("right");
    return 0;
}
