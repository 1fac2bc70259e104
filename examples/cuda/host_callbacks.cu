// Host functions in stream order: they see what came before them, and what comes after sees what they did.
#include "check.h"

#include <atomic>
#include <chrono>
#include <thread>

__global__ void add(int* values, int amount) { values[threadIdx.x] += amount; }

struct Observation {
    const int* value;  // pinned: the copy before the host function puts it there
    std::vector<int>* seen;
};

static void observe(void* data)
{
    auto* observation = (Observation*)data;
    observation->seen->push_back(*observation->value);
}

static void functions_in_order(cudaStream_t stream)
{
    const int rounds = 20;
    DeviceBuffer<int> counter(std::vector<int>(1, 0));
    CHECK(cudaDeviceSynchronize());
    int* value = nullptr;
    CHECK(cudaMallocHost(&value, sizeof(int)));
    std::vector<int> seen, want;
    Observation observation = {value, &seen};
    for (int round = 1; round <= rounds; ++round) {
        add<<<1, 1, 0, stream>>>(counter.data(), 1);
        CHECK_LAUNCH();
        CHECK(cudaMemcpyAsync(value, counter.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, observe, &observation));
        want.push_back(round);
    }
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(seen, want, "every host function saw the copy before it and not the one after it");
    CHECK(cudaFreeHost(value));
}

// The host function's result goes back to the device: copy down, host function, copy up, kernel.
static void functions_make_data(cudaStream_t stream)
{
    const int rounds = 6, count = 32;
    DeviceBuffer<int> device(std::vector<int>(count, 1));
    CHECK(cudaDeviceSynchronize());
    int* host = nullptr;
    CHECK(cudaMallocHost(&host, count * sizeof(int)));
    std::vector<int> want(count, 1);
    for (int round = 0; round < rounds; ++round) {
        CHECK(cudaMemcpyAsync(host, device.data(), device.bytes(), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, [](void* data) { for (int i = 0; i < 32; ++i) ((int*)data)[i] = ((int*)data)[i] * 3 + i; }, host));
        CHECK(cudaMemcpyAsync(device.data(), host, device.bytes(), cudaMemcpyHostToDevice, stream));
        add<<<1, count, 0, stream>>>(device.data(), 7);
        CHECK_LAUNCH();
        for (int i = 0; i < count; ++i) want[i] = want[i] * 3 + i + 7;
    }
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(device.download(), want, "the device continues with what host functions computed");
    CHECK(cudaFreeHost(host));
}

struct CallbackLog {
    cudaStream_t stream;
    std::vector<int> order;
    bool all_well = true;
};
struct CallbackArgument {
    CallbackLog* log;
    int number;
};

static void stream_callbacks(cudaStream_t stream)
{
    CallbackLog log = {stream, {}, true};
    std::vector<CallbackArgument> arguments;
    for (int number = 0; number < 10; ++number) arguments.push_back({&log, number});
    DeviceBuffer<int> counter(std::vector<int>(1, 0));
    CHECK(cudaDeviceSynchronize());
    std::vector<int> want;
    for (CallbackArgument& argument : arguments) {
        add<<<1, 1, 0, stream>>>(counter.data(), 1);
        CHECK_LAUNCH();
        auto callback = [](cudaStream_t of, cudaError_t status, void* data) {
            auto* argument = (CallbackArgument*)data;
            argument->log->order.push_back(argument->number);
            argument->log->all_well = argument->log->all_well && status == cudaSuccess && of == argument->log->stream;
        };
        CHECK(cudaStreamAddCallback(stream, callback, &argument, 0));
        want.push_back(argument.number);
    }
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(log.order, want, "callbacks in order");
    expect(log.all_well, "each callback was told its stream and success");
}

// A host function that takes its time holds up its own stream and no other.
static void slow_function(cudaStream_t slow, cudaStream_t other)
{
    static std::atomic<bool> released{false};
    DeviceBuffer<int> behind(std::vector<int>(1, 0)), beside(std::vector<int>(1, 0));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaLaunchHostFunc(slow, [](void*) {
        auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!released && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }, nullptr));
    add<<<1, 1, 0, slow>>>(behind.data(), 5);
    add<<<1, 1, 0, other>>>(beside.data(), 6);
    CHECK_LAUNCH();
    CHECK(cudaStreamSynchronize(other));
    expect(!released && cudaStreamQuery(slow) == cudaErrorNotReady, "the other stream finishes, the slow one waits");
    (void)cudaGetLastError();
    released = true;
    CHECK(cudaStreamSynchronize(slow));
    expect_equal(behind.download(), {5}, "the kernel behind the slow function");
    expect_equal(beside.download(), {6}, "the kernel beside it");
}

int main()
{
    std::printf("host_callbacks: host functions and callbacks in stream order\n");
    cudaStream_t stream, other;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    functions_in_order(stream);
    functions_make_data(stream);
    stream_callbacks(stream);
    slow_function(stream, other);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
    return verdict("host_callbacks");
}
