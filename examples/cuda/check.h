// Error checks and device memory for examples that use the CUDA runtime API.
#pragma once

#include <cuda_runtime.h>

#include "expect.h"

// Ends the program when a CUDA runtime call fails, naming the call and the place.
#define CHECK(call)                                                                                      \
    do {                                                                                                 \
        cudaError_t check_status = (call);                                                               \
        if (check_status != cudaSuccess) {                                                               \
            std::printf("%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, cudaGetErrorName(check_status), \
                        cudaGetErrorString(check_status));                                               \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

// Launches report bad configurations through the last error only.
#define CHECK_LAUNCH() CHECK(cudaGetLastError())

// Expects the call to fail with exactly this error, and clears the error where CUDA lets it be cleared.
#define EXPECT_ERROR(expected, call)                                                                     \
    do {                                                                                                 \
        cudaError_t expect_status = (call);                                                              \
        expect(expect_status == (expected), "%s returns %s", #call, #expected);                          \
        if (expect_status != (expected)) std::printf("  got %s\n", cudaGetErrorName(expect_status));     \
        (void)cudaGetLastError();                                                                        \
    } while (0)

// Device memory that frees itself, with the copies most examples need.
template <class T>
class DeviceBuffer {
public:
    explicit DeviceBuffer(size_t count) : count_(count) { CHECK(cudaMalloc(&data_, count * sizeof(T))); }
    explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size())
    {
        CHECK(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;
    ~DeviceBuffer() { CHECK(cudaFree(data_)); }

    T* data() { return data_; }
    size_t bytes() const { return count_ * sizeof(T); }
    std::vector<T> download()
    {
        std::vector<T> values(count_);
        CHECK(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
        return values;
    }

private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

inline unsigned blocks_for(size_t count, unsigned threads) { return (unsigned)((count + threads - 1) / threads); }
