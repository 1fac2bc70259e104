// NVSHMEM between two processes, one PE each: in every round both put to the other and signal, wait for the other's, and
// add to a counter there; then the host looks at what came. Prints "right".
//   nvshmem_put PE FILE
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int WORDS = 1000;
constexpr int ROUNDS = 3;

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

int main(int count, char **values)
{
    must(count == 3, "nvshmem_put PE FILE");
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
    std::puts("right");
    nvshmem_finalize();
    return 0;
}
