// Managed memory: one pointer for host and device, structures that point to each other, advice, prefetches, copies.
#include "check.h"

#include <cstring>

constexpr unsigned THREADS = 128;

__global__ void add(int* data, int count, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] += value;
}

struct Element {
    char* name;
    int value;
    Element* next;
};

// The kernel reaches what it works on through pointers that lie in managed memory themselves.
__global__ void walk(Element* element)
{
    for (; element; element = element->next) {
        element->value *= 3;
        for (char* c = element->name; *c; ++c)
            if (*c >= 'a' && *c <= 'z') *c -= 'a' - 'A';
    }
}

static int* managed(size_t count, unsigned flags = cudaMemAttachGlobal)
{
    int* data = nullptr;
    CHECK(cudaMallocManaged(&data, count * sizeof(int), flags));
    return data;
}

// Host and device take turns, at every size from a word to some pages that nobody else touches.
static void turns()
{
    for (int count : {1, 1000, 5000, 300000}) {
        int* data = managed(count);
        for (int i = 0; i < count; ++i) data[i] = i;
        for (int round = 1; round <= 4; ++round) {
            add<<<blocks_for(count, THREADS), THREADS>>>(data, count, round);
            CHECK_LAUNCH();
            CHECK(cudaDeviceSynchronize());
            data[round % count] += 100;
        }
        std::vector<int> want(count);
        for (int i = 0; i < count; ++i) want[i] = i + 1 + 2 + 3 + 4;
        for (int round = 1; round <= 4; ++round) want[round % count] += 100;
        expect_equal(std::vector<int>(data, data + count), want, "turns");
        CHECK(cudaFree(data));
    }
    std::printf("host and device take turns\n");
}

static void pointers()
{
    const char* names[] = {"first", "second", "third"};
    Element* head = nullptr;
    for (int i = 2; i >= 0; --i) {
        Element* element = nullptr;
        CHECK(cudaMallocManaged(&element, sizeof *element));
        CHECK(cudaMallocManaged(&element->name, 16));
        std::strcpy(element->name, names[i]);
        element->value = i + 1;
        element->next = head;
        head = element;
    }
    for (int round = 0; round < 2; ++round) {
        walk<<<1, 1>>>(head);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
    }
    while (head) {
        std::printf("%s %d\n", head->name, head->value);
        Element* next = head->next;
        CHECK(cudaFree(head->name));
        CHECK(cudaFree(head));
        head = next;
    }
}

// Copies and fills, in both directions, in the order of the stream and waited for.
static void copies()
{
    const int count = 100000;
    const size_t bytes = count * sizeof(int);
    int *data = managed(count), *device = nullptr;
    CHECK(cudaMalloc(&device, bytes));
    std::vector<int> host(count, 7);
    CHECK(cudaMemcpy(data, host.data(), bytes, cudaMemcpyHostToDevice));
    add<<<blocks_for(count, THREADS), THREADS>>>(data, count, 1);
    CHECK(cudaMemcpy(device, data, bytes, cudaMemcpyDefault));
    CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
    expect_equal(host, std::vector<int>(count, 8), "managed to device after a kernel");
    add<<<blocks_for(count, THREADS), THREADS>>>(device, count, 1);
    CHECK(cudaMemcpyAsync(data, device, bytes, cudaMemcpyDeviceToDevice));
    add<<<blocks_for(count, THREADS), THREADS>>>(data, count, 1);
    CHECK(cudaDeviceSynchronize());
    expect_equal(std::vector<int>(data, data + count), std::vector<int>(count, 10), "device to managed before a kernel");
    CHECK(cudaMemset(data, 0, bytes));
    add<<<blocks_for(count, THREADS), THREADS>>>(data, count, 5);
    CHECK(cudaDeviceSynchronize());
    expect_equal(std::vector<int>(data, data + count), std::vector<int>(count, 5), "filled before a kernel");
    CHECK(cudaFree(device));
    CHECK(cudaFree(data));
    std::printf("copies keep the order\n");
}

static void answers()
{
    const size_t bytes = 1 << 20;
    int* data = managed(bytes / sizeof(int));
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, data));
    expect(attributes.type == cudaMemoryTypeManaged, "the pointer is managed");
    expect(attributes.devicePointer == data && attributes.hostPointer == data, "one pointer for both");

    cudaMemLocation device = {}, host = {};
    device.type = cudaMemLocationTypeDevice;
    host.type = cudaMemLocationTypeHost;
    CHECK(cudaMemAdvise(data, bytes, cudaMemAdviseSetReadMostly, device));
    int mostly = 0, where = 7;
    CHECK(cudaMemRangeGetAttribute(&mostly, sizeof mostly, cudaMemRangeAttributeReadMostly, data, bytes));
    CHECK(cudaMemAdvise(data, bytes / 2, cudaMemAdviseUnsetReadMostly, device));
    int part = 1;
    CHECK(cudaMemRangeGetAttribute(&part, sizeof part, cudaMemRangeAttributeReadMostly, data, bytes));
    expect(mostly == 1 && part == 0, "read mostly, wholly and in part");
    CHECK(cudaMemRangeGetAttribute(&where, sizeof where, cudaMemRangeAttributePreferredLocation, data, bytes));
    expect(where == cudaInvalidDeviceId, "no preferred location");
    CHECK(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, host));
    CHECK(cudaMemRangeGetAttribute(&where, sizeof where, cudaMemRangeAttributePreferredLocation, data, bytes));
    expect(where == cudaCpuDeviceId, "the host is preferred");
    CHECK(cudaMemPrefetchAsync(data, bytes, host, 0, 0));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemRangeGetAttribute(&where, sizeof where, cudaMemRangeAttributeLastPrefetchLocation, data, bytes));
    expect(where == cudaCpuDeviceId, "prefetched to the host");

    EXPECT_ERROR(cudaErrorInvalidValue, cudaMemAdvise(&where, 4, cudaMemAdviseSetReadMostly, device));
    int* other = nullptr;
    EXPECT_ERROR(cudaErrorInvalidValue, cudaMallocManaged(&other, 64, 3));
    EXPECT_ERROR(cudaErrorInvalidValue, cudaFreeHost(data));
    CHECK(cudaFree(data));
    EXPECT_ERROR(cudaErrorInvalidValue, cudaFree(data));
    std::printf("advice is kept\n");
}

// A stream that has memory of its own, and one that is given it by the host.
static void attached()
{
    const int count = 10000;
    int* data = managed(count, cudaMemAttachHost);
    for (int i = 0; i < count; ++i) data[i] = 2;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamAttachMemAsync(stream, data));
    CHECK(cudaStreamSynchronize(stream));
    add<<<blocks_for(count, THREADS), THREADS, 0, stream>>>(data, count, 3);
    CHECK_LAUNCH();
    CHECK(cudaStreamSynchronize(stream));
    expect_equal(std::vector<int>(data, data + count), std::vector<int>(count, 5), "attached to a stream");
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(data));
    std::printf("attached to a stream\n");
}

int main()
{
    std::printf("managed_memory: one pointer for host and device\n");
    turns();
    pointers();
    copies();
    answers();
    attached();
    return verdict("managed_memory");
}
