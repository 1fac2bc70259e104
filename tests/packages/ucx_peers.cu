// UCX's puts by kernels over CUDA IPC beside tests/programs/net/peers.cu: two processes, one GPU each, with the same
// cases and the same line of JSON.
//   ucx_peers latency SCOPE BYTES ROUNDS [together]
//                                  UCX's counter has no fence before it: with one, unless together
//   ucx_peers bandwidth BYTES ROUNDS BLOCKS
//   ucx_peers rate THREADS OPERATIONS
#include <cuda_runtime.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/device/ucp_device_impl.h>
#include <ucp/api/device/ucp_host.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

constexpr uint64_t WARM_UP = 20;
constexpr unsigned BLOCK = 512;
constexpr time_t PATIENCE_S = 20;
// Memory begins with the counter that the other adds to, and the bytes to send.
constexpr uint64_t OUTBOX = 128;

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("{\"failed\": \"%s\"}\n", cudaGetErrorString(status));
    std::exit(1);
}

static void expect(ucs_status_t status, const char *what)
{
    if (status == UCS_OK) return;
    std::printf("{\"failed\": \"%s: %s\"}\n", what, ucs_status_string(status));
    std::exit(1);
}
#define UCX(call) expect(call, #call)

static void must(bool is, const char *what)
{
    if (is) return;
    std::printf("{\"failed\": \"%s\"}\n", what);
    std::exit(1);
}

// What kernels take: this side's memory and the other's, and where this side's is.
struct Sides {
    ucp_device_local_mem_list_h mine;
    ucp_device_remote_mem_list_h other;
    char *memory;
    uint64_t *out;  // nanoseconds, failures
};

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__host__ __device__ uint64_t inbox(uint64_t bytes)
{
    return OUTBOX + (bytes + 127) / 128 * 128;
}

template <ucs_device_level_t level> __device__ bool put(const Sides &sides, uint64_t at, uint64_t to, uint64_t bytes)
{
    return ucp_device_put<level>(sides.mine, 0, at, sides.other, 0, to, bytes, 0, UCP_DEVICE_FLAG_NODELAY, nullptr) == UCS_OK;
}

// Puts and counts as one thread, a warp or a block, in turns with the other.
template <ucs_device_level_t level, bool together> __global__ void __launch_bounds__(BLOCK) play(const Sides sides, int me, uint64_t bytes, uint64_t rounds)
{
    uint64_t began = 0, failed = 0;
    for (uint64_t round = 1; round <= rounds + WARM_UP; ++round) {
        if (round == WARM_UP + 1) began = now_ns();
        for (int turn = 0; turn < 2; ++turn) {
            if (turn == me) {
                failed += !put<level>(sides, OUTBOX, inbox(bytes), bytes);
                if (!together && threadIdx.x == 0) __threadfence_system();
                failed += ucp_device_counter_inc<level>(1, sides.other, 0, 0, 0, UCP_DEVICE_FLAG_NODELAY, nullptr) != UCS_OK;
            } else {
                if (threadIdx.x == 0)
                    while (ucp_device_counter_read<level>(sides.memory) < round) {}
                if constexpr (level == UCS_DEVICE_LEVEL_WARP) __syncwarp();
                if constexpr (level == UCS_DEVICE_LEVEL_BLOCK) __syncthreads();
            }
        }
    }
    if (threadIdx.x == 0) sides.out[0] = now_ns() - began;
    if (failed) sides.out[1] = failed;
}

__global__ void __launch_bounds__(BLOCK) pour(const Sides sides, uint64_t bytes, uint64_t rounds)
{
    uint64_t each = bytes / gridDim.x, at = each * blockIdx.x, failed = 0;
    for (uint64_t round = 0; round < rounds; ++round)
        failed += !put<UCS_DEVICE_LEVEL_BLOCK>(sides, OUTBOX + at, inbox(bytes) + at, each);
    __threadfence_system();
    if (failed) sides.out[1] = failed;
}

// There is no put of a value: each word is written here, and put.
__global__ void words(const Sides sides, uint64_t bytes, uint32_t operations)
{
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, failed = 0;
    auto *word = (volatile uint64_t *)(sides.memory + OUTBOX) + thread;
    for (uint32_t i = 1; i <= operations; ++i) {
        *word = (uint64_t)i << 32 | thread;
        failed += !put<UCS_DEVICE_LEVEL_THREAD>(sides, OUTBOX + 8 * thread, inbox(bytes) + 8 * thread, 8);
    }
    __threadfence_system();
    if (failed) sides.out[1] = failed;
}

// The connection of both processes, by which they tell each other where they are and that they have come.
class Other {
  public:
    Other(int socket, ucp_worker_h worker) : socket_(socket), worker_(worker) {}

    std::vector<char> exchange(const void *bytes, size_t count) const
    {
        uint64_t here = count, there = 0;
        must(write(socket_, &here, sizeof here) == sizeof here && write(socket_, bytes, count) == (ssize_t)count, "the other is gone");
        take(&there, sizeof there);
        std::vector<char> told(there);
        take(told.data(), there);
        return told;
    }

    void meet() const
    {
        exchange("", 1);
    }

  private:
    // UCX makes progress only while it is called.
    void take(void *into, size_t count) const
    {
        time_t until = time(nullptr) + PATIENCE_S;
        for (size_t got = 0; got < count;) {
            pollfd one{socket_, POLLIN, 0};
            ucp_worker_progress(worker_);
            must(time(nullptr) <= until, "the other does not come");
            if (poll(&one, 1, 0) <= 0) continue;
            ssize_t more = read(socket_, (char *)into + got, count - got);
            must(more > 0, "the other is gone");
            got += (size_t)more;
        }
    }

    int socket_;
    ucp_worker_h worker_;
};

static Sides connected(ucp_context_h context, ucp_worker_h worker, const Other &other, char *memory, uint64_t all)
{
    ucp_mem_map_params_t what = {};
    what.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    what.address = memory;
    what.length = all;
    what.memory_type = UCS_MEMORY_TYPE_CUDA;
    ucp_mem_h mapped;
    UCX(ucp_mem_map(context, &what, &mapped));
    ucp_address_t *address;
    size_t length;
    UCX(ucp_worker_get_address(worker, &address, &length));
    std::vector<char> there = other.exchange(address, length);
    void *key;
    UCX(ucp_rkey_pack(context, mapped, &key, &length));
    std::vector<char> its_key = other.exchange(key, length), its_memory = other.exchange(&memory, sizeof memory);

    ucp_ep_params_t to = {};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    to.address = (const ucp_address_t *)there.data();
    ucp_device_mem_list_elem_t element = {};
    UCX(ucp_ep_create(worker, &to, &element.ep));
    UCX(ucp_ep_rkey_unpack(element.ep, its_key.data(), &element.rkey));
    element.field_mask = UCP_DEVICE_MEM_LIST_ELEM_FIELD_MEMH | UCP_DEVICE_MEM_LIST_ELEM_FIELD_RKEY | UCP_DEVICE_MEM_LIST_ELEM_FIELD_LOCAL_ADDR |
                         UCP_DEVICE_MEM_LIST_ELEM_FIELD_REMOTE_ADDR | UCP_DEVICE_MEM_LIST_ELEM_FIELD_LENGTH | UCP_DEVICE_MEM_LIST_ELEM_FIELD_EP;
    element.memh = mapped;
    element.local_addr = memory;
    element.length = all;
    std::memcpy(&element.remote_addr, its_memory.data(), sizeof element.remote_addr);
    ucp_device_mem_list_params_t list = {};
    list.field_mask = UCP_DEVICE_MEM_LIST_PARAMS_FIELD_ELEMENTS | UCP_DEVICE_MEM_LIST_PARAMS_FIELD_ELEMENT_SIZE |
                      UCP_DEVICE_MEM_LIST_PARAMS_FIELD_NUM_ELEMENTS | UCP_DEVICE_MEM_LIST_PARAMS_FIELD_WORKER;
    list.element_size = sizeof element;
    list.num_elements = 1;
    list.worker = worker;
    list.elements = &element;
    Sides sides = {};
    UCX(ucp_device_local_mem_list_create(&list, &sides.mine));
    ucs_status_t status;
    time_t until = time(nullptr) + PATIENCE_S;
    while ((status = ucp_device_remote_mem_list_create(&list, &sides.other)) == UCS_ERR_NOT_CONNECTED && time(nullptr) <= until)
        ucp_worker_progress(worker);
    expect(status, "ucp_device_remote_mem_list_create");
    sides.memory = memory;
    return sides;
}

static ucp_context_h opened()
{
    ucp_config_t *config;
    UCX(ucp_config_read(nullptr, nullptr, &config));
    // Kernels' lists are not made before the connection's messages, which CUDA IPC alone does not need.
    UCX(ucp_config_modify(config, "RESOLVE_REMOTE_EP_ID", "y"));
    ucp_params_t wanted = {};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES;
    wanted.features = UCP_FEATURE_RMA | UCP_FEATURE_DEVICE;
    ucp_context_h context;
    UCX(ucp_init(&wanted, config, &context));
    ucp_config_release(config);
    return context;
}

static bool has_come(const char *at, int value, uint64_t bytes)
{
    std::vector<char> copy(bytes);
    expect(cudaMemcpy(copy.data(), at, bytes, cudaMemcpyDefault));
    for (char one : copy)
        if (one != value) return false;
    return true;
}

static bool words_have_come(const char *at, uint64_t threads, uint64_t operations)
{
    std::vector<uint64_t> copy(threads);
    expect(cudaMemcpy(copy.data(), at, 8 * threads, cudaMemcpyDefault));
    for (uint64_t thread = 0; thread < threads; ++thread)
        if (copy[thread] != (operations << 32 | thread)) return false;
    return true;
}

static float ms_of(cudaEvent_t began)
{
    cudaEvent_t ended;
    float ms = 0;
    expect(cudaEventCreate(&ended));
    expect(cudaEventRecord(ended));
    expect(cudaEventSynchronize(ended));
    expect(cudaEventElapsedTime(&ms, began, ended));
    return ms;
}

template <bool together> static void plays(const Sides &sides, int me, char scope, uint64_t bytes, uint64_t rounds)
{
    switch (scope) {
    case 't': play<UCS_DEVICE_LEVEL_THREAD, together><<<1, 1>>>(sides, me, bytes, rounds); break;
    case 'w': play<UCS_DEVICE_LEVEL_WARP, together><<<1, 32>>>(sides, me, bytes, rounds); break;
    default: play<UCS_DEVICE_LEVEL_BLOCK, together><<<1, BLOCK>>>(sides, me, bytes, rounds);
    }
    expect(cudaGetLastError());
    expect(cudaDeviceSynchronize());
}

static int run(int me, int count, char **values, int socket)
{
    expect(cudaSetDevice(me));
    auto number = [&](int at) { return at < count ? std::strtoull(values[at], nullptr, 10) : 0; };
    bool plays_it = std::strcmp(values[1], "latency") == 0, pours = std::strcmp(values[1], "bandwidth") == 0;
    uint64_t bytes = plays_it ? number(3) : pours ? number(2) : number(2) * 8, all = inbox(bytes) + bytes;
    char *memory;
    expect(cudaMalloc((void **)&memory, all));
    expect(cudaMemset(memory, 0, OUTBOX));
    expect(cudaMemset(memory + OUTBOX, me + 1, all - OUTBOX));
    expect(cudaDeviceSynchronize());
    ucp_context_h context = opened();
    ucp_worker_params_t single = {};
    ucp_worker_h worker;
    UCX(ucp_worker_create(context, &single, &worker));
    Other other(socket, worker);
    Sides sides = connected(context, worker, other, memory, all);
    expect(cudaHostAlloc((void **)&sides.out, 16, cudaHostAllocMapped));
    sides.out[0] = sides.out[1] = 0;
    other.meet();
    bool right = true;
    char *to = memory + inbox(bytes);
    if (plays_it) {
        if (count > 5) plays<true>(sides, me, values[2][0], bytes, number(4));
        else plays<false>(sides, me, values[2][0], bytes, number(4));
        other.meet();
        right = has_come(to, 2 - me, bytes) && sides.out[1] == 0;
        if (me == 0)
            std::printf("{\"gpus\": 2, \"bytes\": %llu, \"one_way_ns\": %.1f, \"right\": %s}\n", (unsigned long long)bytes,
                        (double)sides.out[0] / (2.0 * (double)number(4)), right ? "true" : "false");
    } else {
        float ms = 0;
        for (uint64_t some : {WARM_UP, (uint64_t)number(3)}) {
            if (me != 0) break;
            cudaEvent_t began;
            expect(cudaEventCreate(&began));
            expect(cudaEventRecord(began));
            uint64_t threads = number(2);
            if (pours) pour<<<number(4), BLOCK>>>(sides, bytes, some);
            else words<<<(threads + 255) / 256, threads < 256 ? threads : 256>>>(sides, bytes, some);
            expect(cudaGetLastError());
            ms = ms_of(began);
        }
        other.meet();
        if (me == 1) right = pours ? has_come(to, 1, bytes / number(4) * number(4)) : words_have_come(to, number(2), number(3));
        right = right && sides.out[1] == 0;
        double times = (double)number(3) / (ms / 1e3);
        if (me == 0 && pours)
            std::printf("{\"gpus\": 2, \"bytes\": %llu, \"blocks\": %llu, \"gigabytes_a_second\": %.2f, \"right\": true}\n",
                        (unsigned long long)bytes, (unsigned long long)number(4), (double)bytes * times / 1e9);
        if (me == 0 && !pours)
            std::printf("{\"gpus\": 2, \"threads\": %llu, \"operations_a_second\": %.0f, \"right\": true}\n", (unsigned long long)number(2),
                        (double)number(2) * times);
    }
    std::fflush(stdout);
    other.meet();
    // Nothing is closed: the end of both processes does that.
    std::_Exit(right ? 0 : 1);
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 3;
    // Both begin to use CUDA after the fork.
    pid_t child = fork();
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0) return run(1, count, values, ends[1]);
    // run() ends the process, so that a third one waits for both.
    pid_t first = fork();
    if (first == 0) return run(0, count, values, ends[0]);
    close(ends[0]);
    int status = 0, worst = 0;
    for (pid_t one : {child, first}) {
        waitpid(one, &status, 0);
        int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (ended > worst) worst = ended;
    }
    return worst;
}
