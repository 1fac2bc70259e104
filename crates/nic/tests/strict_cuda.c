// A libcuda.so.1 that refuses ordinary memory as I/O memory, as Nvidia's does, and notes how memory was registered.
#include <stddef.h>
#include <string.h>

unsigned registered_with = ~0u;

int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    (void)at, (void)bytes;
    if (flags & 4)
        return 1; // CUDA_ERROR_INVALID_VALUE
    registered_with = flags;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status);

int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    (void)flags;
    *out = NULL;
    if (strcmp(name, "cuMemHostRegister") == 0)
        *out = (void *)cuMemHostRegister_v2;
    if (strcmp(name, "cuGetProcAddress") == 0)
        *out = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    return *out ? 0 : 500; // CUDA_ERROR_NOT_FOUND
}

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
    *status = 0;
    return cuGetProcAddress(name, out, version, flags);
}
