// __managed__ variables: one name for host and device, with first contents, pointers into each other, and many pages.
#include "check.h"

#include <cstring>

constexpr int THREADS = 128;
constexpr int COUNT = 70000;

struct Pair {
    int first;
    double second;
};

__managed__ int counter = 5;
__managed__ int zeroed;
__managed__ Pair pair = {7, 2.5};
__managed__ char text[12] = "managed";
__managed__ float numbers[COUNT];
__managed__ int* pointer;
__device__ int plain = 11;

__global__ void change()
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) numbers[i] = 2 * numbers[i] + counter;
    if (i == 0) {
        zeroed += plain;
        pair.second *= pair.first;
        text[0] = 'M';
        if (pointer) *pointer += 100;
    }
}

// Takes the variable's address as an argument, as it would any other pointer.
__global__ void fill(float* to, int count, float value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value;
}

static void launch()
{
    change<<<blocks_for(COUNT, THREADS), THREADS>>>();
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
}

static void first_contents()
{
    expect(counter == 5 && zeroed == 0, "counter %d, zeroed %d", counter, zeroed);
    expect(pair.first == 7 && pair.second == 2.5, "pair %d, %g", pair.first, pair.second);
    expect(!std::strcmp(text, "managed"), "text %s", text);
    std::printf("the host reads the first contents\n");
}

static void turns()
{
    for (int i = 0; i < COUNT; ++i) numbers[i] = float(i % 100);
    for (int round = 0; round < 3; ++round) {
        counter = round;
        pointer = round == 1 ? &zeroed : nullptr;
        pair.first = round + 1;
        launch();
    }
    std::vector<float> want(COUNT);
    for (int i = 0; i < COUNT; ++i) {
        want[i] = float(i % 100);
        for (int round = 0; round < 3; ++round) want[i] = 2 * want[i] + round;
    }
    expect_equal(std::vector<float>(numbers, numbers + COUNT), want, "numbers");
    expect(zeroed == 3 * 11 + 100, "zeroed %d", zeroed);
    expect(pair.second == 2.5 * 1 * 2 * 3, "pair.second %g", pair.second);
    expect(!std::strcmp(text, "Managed"), "text %s", text);
    std::printf("host and device take turns\n");
}

static void copies()
{
    int* address = nullptr;
    size_t bytes = 0;
    CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), counter));
    CHECK(cudaGetSymbolSize(&bytes, numbers));
    expect(address == &counter, "the symbol's address is the variable's");
    expect(bytes == sizeof numbers, "the symbol has %zu bytes", bytes);

    int value = 1234;
    CHECK(cudaMemcpyToSymbol(counter, &value, sizeof value));
    CHECK(cudaDeviceSynchronize());
    expect(counter == 1234, "counter %d after a copy to it", counter);
    counter = 4321;
    CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    expect(value == 4321, "a copy from it gives %d", value);

    DeviceBuffer<float> device(std::vector<float>(COUNT, 0.5f));
    CHECK(cudaMemcpy(numbers, device.data(), sizeof numbers, cudaMemcpyDefault));
    fill<<<1, THREADS>>>(numbers + 10, 20, 9.0f);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    expect(numbers[9] == 0.5f && numbers[10] == 9.0f && numbers[29] == 9.0f && numbers[COUNT - 1] == 0.5f,
           "numbers after a copy and a kernel: %g, %g, %g, %g", numbers[9], numbers[10], numbers[29],
           numbers[COUNT - 1]);
    std::printf("copies and pointers reach it\n");
}

static void attributes()
{
    cudaPointerAttributes about;
    CHECK(cudaPointerGetAttributes(&about, &pair));
    expect(about.type == cudaMemoryTypeManaged, "its memory is managed: %d", about.type);
    EXPECT_ERROR(cudaErrorInvalidValue, cudaFree(&pair));
}

int main()
{
    std::printf("managed_variables: __managed__ variables, for host and device\n");
    first_contents();
    turns();
    copies();
    attributes();
    return verdict("managed_variables");
}
