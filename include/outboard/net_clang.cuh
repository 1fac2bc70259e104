// Names of CUDA's headers that net.cuh uses, for a clang that has no such headers, or none that it can read:
//
//   clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -std=c++17 -O2 -Iinclude
//         -include outboard/net_clang.cuh -emit-llvm -c include/outboard/net_calls.cu -o net_calls.bc
//
// (python/outboard/_net_calls.py has all that Triton needs.) In PTX, so that no version of clang lacks a builtin.
#pragma once

#include <string.h>

#define __CUDACC__ 1
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __noinline__ __attribute__((noinline))

namespace outboard_clang {

struct Numbers {
    unsigned x, y, z;
};

__device__ inline Numbers thread()
{
    Numbers numbers;
    asm("mov.u32 %0, %%tid.x;" : "=r"(numbers.x));
    asm("mov.u32 %0, %%tid.y;" : "=r"(numbers.y));
    asm("mov.u32 %0, %%tid.z;" : "=r"(numbers.z));
    return numbers;
}

__device__ inline Numbers threads()
{
    Numbers numbers;
    asm("mov.u32 %0, %%ntid.x;" : "=r"(numbers.x));
    asm("mov.u32 %0, %%ntid.y;" : "=r"(numbers.y));
    asm("mov.u32 %0, %%ntid.z;" : "=r"(numbers.z));
    return numbers;
}

} // namespace outboard_clang

#define threadIdx outboard_clang::thread()
#define blockDim outboard_clang::threads()
// Functions of the CPU or builtins of some versions, by these names.
#define memcpy __builtin_memcpy
#define __syncthreads() asm volatile("barrier.sync 0;" ::: "memory")

__device__ inline int __syncthreads_and(int is)
{
    int all;
    asm volatile("{ .reg .pred is, all; setp.ne.s32 is, %1, 0; barrier.red.and.pred all, 0, is; selp.b32 %0, 1, 0, all; }"
                 : "=r"(all)
                 : "r"(is)
                 : "memory");
    return all;
}

__device__ inline void __syncwarp(unsigned mask = 0xffffffffu) { asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory"); }

__device__ inline int __all_sync(unsigned mask, int is)
{
    int all;
    asm volatile("{ .reg .pred is, all; setp.ne.s32 is, %1, 0; vote.sync.all.pred all, is, %2; selp.b32 %0, 1, 0, all; }"
                 : "=r"(all)
                 : "r"(is), "r"(mask));
    return all;
}

__device__ inline int __any_sync(unsigned mask, int is)
{
    int any;
    asm volatile("{ .reg .pred is, any; setp.ne.s32 is, %1, 0; vote.sync.any.pred any, is, %2; selp.b32 %0, 1, 0, any; }"
                 : "=r"(any)
                 : "r"(is), "r"(mask));
    return any;
}

__device__ inline unsigned __ballot_sync(unsigned mask, int is)
{
    unsigned ballot;
    asm volatile("{ .reg .pred is; setp.ne.s32 is, %1, 0; vote.sync.ballot.b32 %0, is, %2; }"
                 : "=r"(ballot)
                 : "r"(is), "r"(mask));
    return ballot;
}

__device__ inline int __shfl_sync(unsigned mask, int value, int lane)
{
    int got;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;" : "=r"(got) : "r"(value), "r"(lane), "r"(mask));
    return got;
}

__device__ inline unsigned long long __shfl_sync(unsigned mask, unsigned long long value, int lane)
{
    unsigned low = (unsigned)__shfl_sync(mask, (int)(unsigned)value, lane);
    unsigned high = (unsigned)__shfl_sync(mask, (int)(unsigned)(value >> 32), lane);
    return (unsigned long long)high << 32 | low;
}

__device__ inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

__device__ inline int __ffs(int bits) { return __builtin_ffs(bits); }
__device__ inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
__device__ inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
