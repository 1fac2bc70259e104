// A preload for NCCL on the software device, which says of itself that adapters do not reach it: it says here that they
// do, which is true of the adapter in software. Memory of the host by cuMemCreate is that of cuMemHostAlloc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { VMM_SUPPORTED = 110, RDMA_SUPPORTED = 116, DMA_BUF_SUPPORTED = 124, ON_DEVICE = 1, MAPPED_PORTABLE = 3, PIECES_MAX = 256 };
static const uint64_t OURS = UINT64_C(1) << 62;

static void *(*real_dlsym)(void *, const char *);
static int (*real_proc_address)(const char *, void **, int, uint64_t, int *);
static int (*real_attribute)(int *, int, int);
static int (*real_create)(uint64_t *, size_t, const int *, uint64_t);
static int (*real_reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t);
static int (*real_map)(uint64_t, size_t, size_t, uint64_t, uint64_t);
static int (*real_access)(uint64_t, size_t, const void *, size_t);
static int (*real_retain)(uint64_t *, uint64_t);
static int (*real_release)(uint64_t);
static int (*real_range)(uint64_t *, size_t *, uint64_t);
static int (*real_unmap)(uint64_t, size_t);
static int (*real_free)(uint64_t, size_t);

// Pieces of the host's memory, and the one that this thread has created and not yet given an address.
static struct piece {
    uint64_t at;
    size_t bytes;
} pieces[PIECES_MAX];
static int count;
static __thread struct piece *created;

static struct piece *piece_of(uint64_t at)
{
    for (int i = 0; i < count; i++)
        if (pieces[i].at == at)
            return &pieces[i];
    return NULL;
}

static void *symbol(const char *name)
{
    return real_dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static int attribute(int *value, int which, int device)
{
    int status = real_attribute(value, which, device);
    if (status == 0 && (which == VMM_SUPPORTED || which == RDMA_SUPPORTED || which == DMA_BUF_SUPPORTED))
        *value = 1;
    return status;
}

static int handle_for_range(int *handle, uint64_t at, size_t bytes, int type, uint64_t flags)
{
    (void)at, (void)bytes, (void)type, (void)flags;
    return (*handle = memfd_create("buffer", MFD_CLOEXEC)) < 0;
}

static int create(uint64_t *handle, size_t bytes, const int *properties, uint64_t flags)
{
    if (properties[2] == ON_DEVICE)
        return real_create(handle, bytes, properties, flags);
    int number = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    int (*allocate)(uint64_t *, size_t, unsigned) = symbol("cuMemHostAlloc");
    if (number >= PIECES_MAX || allocate(&pieces[number].at, bytes, MAPPED_PORTABLE) != 0)
        return 2;
    created = &pieces[number];
    created->bytes = bytes;
    *handle = OURS;
    return 0;
}

static int reserve(uint64_t *at, size_t bytes, size_t alignment, uint64_t wanted, uint64_t flags)
{
    if (!created)
        return real_reserve(at, bytes, alignment, wanted, flags);
    *at = created->at;
    created = NULL;
    return 0;
}

static int map(uint64_t at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags)
{
    return handle == OURS ? 0 : real_map(at, bytes, offset, handle, flags);
}

static int set_access(uint64_t at, size_t bytes, const void *wanted, size_t number)
{
    return piece_of(at) ? 0 : real_access(at, bytes, wanted, number);
}

static int retain(uint64_t *handle, uint64_t at)
{
    return piece_of(at) ? (*handle = OURS, 0) : real_retain(handle, at);
}

static int release(uint64_t handle)
{
    return handle == OURS ? 0 : real_release(handle);
}

static int range(uint64_t *base, size_t *bytes, uint64_t at)
{
    struct piece *piece = piece_of(at);
    if (!piece)
        return real_range(base, bytes, at);
    if (base)
        *base = piece->at;
    if (bytes)
        *bytes = piece->bytes;
    return 0;
}

static int unmap(uint64_t at, size_t bytes)
{
    return piece_of(at) ? 0 : real_unmap(at, bytes);
}

static int free_address(uint64_t at, size_t bytes)
{
    struct piece *piece = piece_of(at);
    if (!piece)
        return real_free(at, bytes);
    piece->at = 0;
    return ((int (*)(uint64_t))symbol("cuMemFreeHost"))(at);
}

static int proc_address(const char *name, void **found, int version, uint64_t flags, int *status);

static const struct stand_in {
    const char *name;
    void *ours, *real;
} STAND_INS[] = {
    {"cuGetProcAddress_v2", proc_address, &real_proc_address},
    {"cuGetProcAddress", proc_address, &real_proc_address},
    {"cuDeviceGetAttribute", attribute, &real_attribute},
    {"cuMemGetHandleForAddressRange", handle_for_range, NULL},
    {"cuMemCreate", create, &real_create},
    {"cuMemAddressReserve", reserve, &real_reserve},
    {"cuMemMap", map, &real_map},
    {"cuMemSetAccess", set_access, &real_access},
    {"cuMemRetainAllocationHandle", retain, &real_retain},
    {"cuMemRelease", release, &real_release},
    {"cuMemGetAddressRange", range, &real_range},
    {"cuMemUnmap", unmap, &real_unmap},
    {"cuMemAddressFree", free_address, &real_free},
};

// Returns ours in place of a function of the driver, if there is one.
static void *in_place_of(const char *name, void *found)
{
    for (size_t i = 0; i < sizeof STAND_INS / sizeof *STAND_INS; i++) {
        if (strcmp(name, STAND_INS[i].name) != 0 || found == STAND_INS[i].ours)
            continue;
        if (STAND_INS[i].real)
            *(void **)STAND_INS[i].real = found;
        return STAND_INS[i].ours;
    }
    return found;
}

static int proc_address(const char *name, void **found, int version, uint64_t flags, int *status)
{
    int failed = real_proc_address(name, found, version, flags, status);
    if (failed == 0 && *found)
        *found = in_place_of(name, *found);
    return failed;
}

// CUDA's runtime looks up the first of them so; the driver has the others behind it.
void *dlsym(void *handle, const char *name)
{
    if (!real_dlsym)
        real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real_dlsym(handle, name);
    return found && strcmp(name, "cuGetProcAddress_v2") == 0 ? in_place_of(name, found) : found;
}
