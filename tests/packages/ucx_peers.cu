// UCX's puts by kernels over CUDA IPC beside tests/programs/net/peers.cu: two processes, one GPU each, with the same
// cases and the same line of JSON.
//   ucx_peers latency SCOPE BYTES ROUNDS [together]
//                                  UCX's counter has no fence before it: with one, unless together
//   ucx_peers bandwidth BYTES ROUNDS BLOCKS
//   ucx_peers rate THREADS OPERATIONS
#include <poll.h>
#include <sys/socket.h>
#include <ucp/api/device/ucp_device_impl.h>
#include <ucp/api/device/ucp_host.h>
#include <ucp/api/ucp.h>

#include <ctime>

#include "../programs/net/case.cuh"

constexpr time_t PATIENCE_S = 20;

static void expect(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) fail(what, ucs_status_string(status));
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

static bool words_have_come(const char *at, uint64_t threads, uint64_t operations)
{
    std::vector<uint64_t> copy(threads);
    expect(cudaMemcpy(copy.data(), at, 8 * threads, cudaMemcpyDefault));
    for (uint64_t thread = 0; thread < threads; ++thread)
        if (copy[thread] != (operations << 32 | thread)) return false;
    return true;
}

template <bool together> static void plays(const Sides &sides, int me, const Case &of)
{
    uint64_t bytes = of.bytes, rounds = of.rounds;
    switch (of.scope) {
    case 't': play<UCS_DEVICE_LEVEL_THREAD, together><<<1, 1>>>(sides, me, bytes, rounds); break;
    case 'w': play<UCS_DEVICE_LEVEL_WARP, together><<<1, 32>>>(sides, me, bytes, rounds); break;
    default: play<UCS_DEVICE_LEVEL_BLOCK, together><<<1, BLOCK>>>(sides, me, bytes, rounds);
    }
    expect(cudaGetLastError());
    expect(cudaDeviceSynchronize());
}

static int run(int me, const Case &of, int socket)
{
    expect(cudaSetDevice(me));
    uint64_t bytes = of.bytes, all = inbox(bytes) + bytes;
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
    double took = 0;
    if (of.plays) {
        if (of.together) plays<true>(sides, me, of);
        else plays<false>(sides, me, of);
        other.meet();
        right = has_come(to, 2 - me, bytes);
        took = (double)sides.out[0];
    } else {
        auto launch = [&](uint64_t some) {
            if (of.pours) pour<<<of.blocks, BLOCK>>>(sides, bytes, some);
            else words<<<of.words_grid(), of.words_block()>>>(sides, bytes, some);
        };
        if (me == 0) took = of.seconds(launch);
        other.meet();
        if (me == 1) right = of.pours ? has_come(to, 1, of.poured()) : words_have_come(to, of.threads, of.rounds);
    }
    right = right && sides.out[1] == 0;
    if (me == 0) of.say(2, took, right);
    std::fflush(stdout);
    other.meet();
    // Nothing is closed: the end of both processes does that.
    std::_Exit(right ? 0 : 1);
}

int main(int count, char **values)
{
    if (count < 4) return 2;
    Case of(count, values);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 3;
    // Both begin to use CUDA after the fork.
    pid_t child = fork();
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0) return run(1, of, ends[1]);
    // run() ends the process, so that a third one waits for both.
    pid_t first = fork();
    if (first == 0) return run(0, of, ends[0]);
    close(ends[0]);
    int status = 0, worst = 0;
    for (pid_t one : {child, first}) {
        waitpid(one, &status, 0);
        int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (ended > worst) worst = ended;
    }
    return worst;
}
