// A synchronous copy to the device is over when it returns: work submitted later to any stream, by any thread, finds its bytes,
// even to a stream that does not wait for the default stream, and while the default stream has much to do.
#include <cstring>
#include <thread>

#include "check.h"

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;
constexpr size_t WORDS_MAX = 16 * KIB;
constexpr unsigned BLOCKS = 16, THREADS = 256;

// Counts words that are not `want`, among every `step`th one from the last word on down.
__global__ void count_others(const unsigned* words, size_t count, size_t step, unsigned want, unsigned* others)
{
    size_t stride = (size_t)gridDim.x * blockDim.x * step;
    unsigned wrong = 0;
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * step; i < count; i += stride)
        wrong += words[count - 1 - i] != want;
    if (wrong != 0) atomicAdd(others, wrong);
}

// Keeps the default stream occupied for some milliseconds.
__global__ void spin(unsigned steps, unsigned* sink)
{
    unsigned value = 1;
    for (unsigned i = 0; i < steps; ++i) value = value * 1664525u + i;
    if (value == 0) *sink = value;
}

// What cudaMemcpy is where every thread has a default stream of its own.
extern "C" cudaError_t CUDARTAPI cudaMemcpy_ptds(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

__device__ unsigned symbol[64 * KIB / sizeof(unsigned)];

struct Memory {
    unsigned *pageable, *pinned, *device, *others;
    size_t bytes;

    explicit Memory(size_t bytes_max) : bytes(bytes_max)
    {
        pageable = (unsigned*)std::malloc(bytes);
        CHECK(cudaMallocHost(&pinned, bytes));
        CHECK(cudaMalloc(&device, bytes));
        CHECK(cudaMalloc(&others, sizeof(unsigned)));
    }
    ~Memory()
    {
        std::free(pageable);
        CHECK(cudaFreeHost(pinned));
        CHECK(cudaFree(device));
        CHECK(cudaFree(others));
    }
};

static unsigned latest = 0;  // no two copies carry the same word

static void fill(unsigned* words, size_t bytes)
{
    ++latest;
    for (size_t i = 0; i < bytes / sizeof(unsigned); ++i) words[i] = latest;
}

// Of long copies some words are looked at: the kernels are to be short.
static size_t step_of(size_t count) { return count > WORDS_MAX ? count / WORDS_MAX : 1; }

// How many words of `data` a kernel in this stream takes for older ones.
static unsigned old_words(Memory& memory, const unsigned* data, size_t bytes, cudaStream_t stream)
{
    unsigned others = 0;
    size_t count = bytes / sizeof(unsigned);
    count_others<<<BLOCKS, THREADS, 0, stream>>>(data, count, step_of(count), latest, memory.others);
    CHECK_LAUNCH();
    CHECK(cudaMemcpyAsync(&others, memory.others, sizeof others, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemsetAsync(memory.others, 0, sizeof others, stream));
    CHECK(cudaStreamSynchronize(stream));
    return others;
}

static void busy(Memory& memory)
{
    spin<<<1, 1>>>(200'000, memory.others);
    CHECK_LAUNCH();
}

// Copies of one dimension, a kernel in another stream behind each.
static void lines(Memory& memory, cudaStream_t stream)
{
    for (bool pinned : {false, true}) {
        unsigned* source = pinned ? memory.pinned : memory.pageable;
        for (size_t bytes : {4 * KIB, 60 * KIB, 256 * KIB, MIB + 4 * KIB, 16 * MIB, 64 * MIB}) {
            unsigned old = 0;
            int rounds = bytes <= 2 * MIB ? 4 : 1;
            for (int round = 0; round < rounds; ++round) {
                fill(source, bytes);
                busy(memory);
                CHECK(cudaMemcpy(memory.device, source, bytes, cudaMemcpyHostToDevice));
                // A copy has been made: its source may change.
                if (bytes <= MIB) std::memset(source, 0xee, bytes);
                old += old_words(memory, memory.device, bytes, stream);
            }
            // CUDA lets a copy of pageable memory return when its bytes have been taken: an H100's driver does, from 1 MiB on.
            if (pinned) expect(old == 0, "%zu KiB of pinned memory, seen by a kernel in another stream", bytes / KIB);
            else observe(old == 0, "%zu KiB of pageable memory, by a kernel in another stream", bytes / KIB);
        }
    }
}

// Holds copies of pinned memory to what CUDA promises, and looks what becomes of pageable memory.
static void seen(bool pinned, bool holds, const char* what)
{
    const char* memory = pinned ? "pinned" : "pageable";
    char text[80];
    std::snprintf(text, sizeof text, "%s %s memory", what, memory);
    if (pinned) expect(holds, "%s", text);
    else observe(holds, "%s", text);
}

// Other copies that return when they are over.
static void shapes(Memory& memory, cudaStream_t stream)
{
    const size_t width = 12 * KIB, height = 200, bytes = width * height;
    for (bool pinned : {false, true}) {
        unsigned* source = pinned ? memory.pinned : memory.pageable;
        fill(source, 2 * bytes);
        busy(memory);
        // Every other row's worth of the source.
        CHECK(cudaMemcpy2D(memory.device, width, source, 2 * width, width, height, cudaMemcpyHostToDevice));
        seen(pinned, old_words(memory, memory.device, bytes, stream) == 0, "rows of");

        cudaMemcpy3DParms box = {};
        box.srcPtr = make_cudaPitchedPtr(source, 2 * width, width, height / 4);
        box.dstPtr = make_cudaPitchedPtr(memory.device, width, width, height / 4);
        box.extent = make_cudaExtent(width, height / 4, 2);
        box.kind = cudaMemcpyHostToDevice;
        fill(source, 2 * bytes);
        busy(memory);
        CHECK(cudaMemcpy3D(&box));
        seen(pinned, old_words(memory, memory.device, bytes / 2, stream) == 0, "slices of");

        fill(source, sizeof symbol);
        busy(memory);
        CHECK(cudaMemcpyToSymbol(symbol, source, sizeof symbol));
        void* address = nullptr;
        CHECK(cudaGetSymbolAddress(&address, symbol));
        seen(pinned, old_words(memory, (unsigned*)address, sizeof symbol, stream) == 0, "a variable set from");
    }
}

// Whatever work looks first: a graph, a copy back, work behind an event of the stream, a stream made only then, another thread.
static void readers(Memory& memory, cudaStream_t stream)
{
    const size_t bytes = 4 * MIB, count = bytes / sizeof(unsigned);
    unsigned* source = memory.pageable;
    auto copy = [&] {
        fill(source, bytes);
        busy(memory);
        CHECK(cudaMemcpy(memory.device, source, bytes, cudaMemcpyHostToDevice));
    };

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    count_others<<<BLOCKS, THREADS, 0, stream>>>(memory.device, count, step_of(count), latest + 1, memory.others);
    CHECK_LAUNCH();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    copy();
    CHECK(cudaGraphLaunch(exec, stream));
    unsigned others = 0;
    CHECK(cudaMemcpyAsync(&others, memory.others, sizeof others, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemsetAsync(memory.others, 0, sizeof others, stream));
    CHECK(cudaStreamSynchronize(stream));
    observe(others == 0, "a graph");
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));

    copy();
    CHECK(cudaMemcpyAsync(memory.pinned, memory.device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    observe(memory.pinned[0] == latest && memory.pinned[count - 1] == latest, "a copy back");

    cudaEvent_t event;
    cudaStream_t second;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    copy();
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(second, event, 0));
    observe(old_words(memory, memory.device, bytes, second) == 0, "work behind an event of another stream");
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaEventDestroy(event));

    copy();
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    observe(old_words(memory, memory.device, bytes, second) == 0, "a stream that was made behind the copy");
    CHECK(cudaStreamDestroy(second));

    unsigned old = 1;
    copy();
    std::thread([&] { old = old_words(memory, memory.device, bytes, stream); }).join();
    observe(old == 0, "another thread");
    std::thread(copy).join();
    observe(old_words(memory, memory.device, bytes, stream) == 0, "what another thread copied");
}

// A copy in a thread's own default stream, seen from a stream that does not wait for it.
static void own_default_stream(Memory& memory)
{
    const size_t bytes = 4 * MIB;
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    fill(memory.pageable, bytes);
    spin<<<1, 1, 0, cudaStreamPerThread>>>(200'000, memory.others);
    CHECK_LAUNCH();
    CHECK(cudaMemcpy_ptds(memory.device, memory.pageable, bytes, cudaMemcpyHostToDevice));
    observe(old_words(memory, memory.device, bytes, blocking) == 0, "a copy of pageable memory in a thread's own default stream");
    CHECK(cudaStreamDestroy(blocking));
}

int main()
{
    std::printf("sync_copy_order: a copy that has returned is over for every stream\n");
    Memory memory(64 * MIB);
    CHECK(cudaMemset(memory.others, 0, sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    lines(memory, stream);
    shapes(memory, stream);
    readers(memory, stream);
    own_default_stream(memory);
    CHECK(cudaStreamDestroy(stream));
    return verdict("sync_copy_order");
}
