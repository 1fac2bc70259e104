// Times what it takes to allocate and free memory of a device, pinned, and managed, by bytes; and to launch a kernel by the
// bytes of its threads' stacks. A line of JSON for each.
//   allocate REPEATS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

static double now_us()
{
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void expect(cudaError_t status)
{
    if (status == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(status));
    std::exit(1);
}

static double median(std::vector<double> &times)
{
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

__global__ void touch(char *at, size_t bytes)
{
    for (size_t i = threadIdx.x * 4096; i < bytes; i += blockDim.x * 4096) at[i] = 1;
}

__global__ void nothing() {}

static void allocate(const char *place, size_t bytes, int repeats)
{
    std::vector<double> made, used, freed;
    for (int i = 0; i <= repeats; ++i) {
        void *at = nullptr;
        double began = now_us();
        if (place[0] == 'd') expect(cudaMalloc(&at, bytes));
        if (place[0] == 'p') expect(cudaHostAlloc(&at, bytes, cudaHostAllocMapped));
        if (place[0] == 'm') expect(cudaMallocManaged(&at, bytes));
        double allocated = now_us();
        touch<<<1, 256>>>((char *)at, bytes);
        expect(cudaDeviceSynchronize());
        double touched = now_us();
        if (place[0] == 'p') expect(cudaFreeHost(at));
        else expect(cudaFree(at));
        // The first one also loads the kernel.
        if (i == 0) continue;
        made.push_back(allocated - began), used.push_back(touched - allocated), freed.push_back(now_us() - touched);
    }
    std::printf("{\"place\": \"%s\", \"bytes\": %zu, \"allocate_us\": %.2f, \"first_use_us\": %.2f, \"free_us\": %.2f}\n", place, bytes,
                median(made), median(used), median(freed));
}

static void launch(size_t stack, int repeats)
{
    double began = now_us();
    expect(cudaDeviceSetLimit(cudaLimitStackSize, stack));
    nothing<<<1, 1>>>();
    expect(cudaDeviceSynchronize());
    double first = now_us() - began;
    std::vector<double> times;
    for (int i = 0; i < 20 * repeats; ++i) {
        began = now_us();
        nothing<<<1, 1>>>();
        expect(cudaDeviceSynchronize());
        times.push_back(now_us() - began);
    }
    std::printf("{\"place\": \"stack\", \"bytes\": %zu, \"allocate_us\": %.2f, \"launch_us\": %.2f}\n", stack, first, median(times));
}

int main(int count, char **values)
{
    if (count != 2) return 2;
    int repeats = std::atoi(values[1]);
    for (size_t bytes : {4096ul, 65536ul, 1048576ul, 16777216ul, 67108864ul})
        for (const char *place : {"device", "pinned", "managed"}) allocate(place, bytes, repeats);
    for (size_t bytes : {1024ul, 4096ul, 16384ul}) launch(bytes, repeats);
    return 0;
}
