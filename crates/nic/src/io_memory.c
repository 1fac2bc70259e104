// Preloaded into programs: the driver's cuMemHostRegister takes doorbells of the adapter in software.
//
// Programs register a doorbell's page as I/O memory, and a driver refuses that of ordinary memory, which the adapter's
// pages are. They are registered again without the flag, as what they are. Programs get the function by its name, by
// dlsym, or by cuGetProcAddress, which itself comes by dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define IO_MEMORY 4u
// From this version on cuGetProcAddress is the one with a status.
#define WITH_STATUS 12000

typedef int (*Register)(void *, size_t, unsigned);
typedef int (*Find)(const char *, void **, int, unsigned long long);
typedef int (*FindWithStatus)(const char *, void **, int, unsigned long long, int *);
typedef void *(*Symbol)(void *, const char *);
typedef int (*HasPage)(const void *, size_t);

// The C library's, and the driver's functions.
__attribute__((visibility("hidden"))) Symbol outboard_nic_dlsym;
static Register real_register;
static Find real_find;
static FindWithStatus real_find_with_status;

// By its version, since dlsym is ours here.
static Symbol symbol(void)
{
    if (!outboard_nic_dlsym) {
        Symbol found = (Symbol)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        outboard_nic_dlsym = found ? found : (Symbol)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    return outboard_nic_dlsym;
}

static void *of_library(const char *library, const char *name)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void *found = loaded ? symbol()(loaded, name) : NULL;
    if (loaded)
        dlclose(loaded);
    return found;
}

static int is_ours(const void *at, size_t bytes)
{
    HasPage has = (HasPage)of_library("liboutboard_nic.so", "outboard_nic_has_page");
    return has && has(at, bytes);
}

EXPORTED int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    if (!real_register)
        real_register = (Register)of_library("libcuda.so.1", "cuMemHostRegister_v2");
    if (!real_register)
        return 3; // CUDA_ERROR_NOT_INITIALIZED
    int status = real_register(at, bytes, flags);
    if (status != 0 && (flags & IO_MEMORY) && is_ours(at, bytes))
        status = real_register(at, bytes, flags & ~IO_MEMORY);
    return status;
}

EXPORTED int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags);
EXPORTED int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status);

// Replaces what the driver gave for a name.
static void replace(const char *name, void **out, int version)
{
    if (!name || !out || !*out)
        return;
    if (strcmp(name, "cuMemHostRegister") == 0 && *out != (void *)cuMemHostRegister_v2) {
        real_register = (Register)*out;
        *out = (void *)cuMemHostRegister_v2;
    } else if (strcmp(name, "cuGetProcAddress") == 0) {
        if (version >= WITH_STATUS) {
            if (*out != (void *)cuGetProcAddress_v2)
                real_find_with_status = (FindWithStatus)*out;
            *out = (void *)cuGetProcAddress_v2;
        } else {
            if (*out != (void *)cuGetProcAddress)
                real_find = (Find)*out;
            *out = (void *)cuGetProcAddress;
        }
    }
}

int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    if (!real_find)
        real_find = (Find)of_library("libcuda.so.1", "cuGetProcAddress");
    int status = real_find ? real_find(name, out, version, flags) : 3;
    if (status == 0)
        replace(name, out, version);
    return status;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *found)
{
    if (!real_find_with_status)
        real_find_with_status = (FindWithStatus)of_library("libcuda.so.1", "cuGetProcAddress_v2");
    int status = real_find_with_status ? real_find_with_status(name, out, version, flags, found) : 3;
    if (status == 0)
        replace(name, out, version);
    return status;
}

static int is_driver_loaded(void)
{
    void *loaded = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (loaded)
        dlclose(loaded);
    return loaded != NULL;
}

// Returns the function that programs get for one of the driver's; null for all others, and NOTHING if there is only ours:
// programs take the driver's name for the driver.
#define NOTHING ((void *)1)
__attribute__((used, visibility("hidden"))) void *outboard_nic_stands_for(void *handle, const char *name)
{
    if (!symbol() || !name || name[0] != 'c' || name[1] != 'u')
        return NULL;
    int is_register = strcmp(name, "cuMemHostRegister_v2") == 0;
    int is_find = strcmp(name, "cuGetProcAddress") == 0, is_newer = strcmp(name, "cuGetProcAddress_v2") == 0;
    if (!is_register && !is_find && !is_newer)
        return NULL;
    void *ours = is_register ? (void *)cuMemHostRegister_v2 : is_find ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
    int is_loaded = is_driver_loaded();
    if (handle == RTLD_NEXT && is_loaded)
        return NULL;
    void *real = symbol()(handle, name);
    // The one of a library after this one; if there is none, dlerror says so.
    if (real == ours && !is_loaded)
        real = symbol()(RTLD_NEXT, name);
    if (!real || real == ours)
        return real ? ours : NOTHING;
    if (is_register)
        real_register = (Register)real;
    else if (is_find)
        real_find = (Find)real;
    else
        real_find_with_status = (FindWithStatus)real;
    return ours;
}

// A jump, and no call: the C library looks at the address to which it returns for what RTLD_NEXT means.
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    subq $8, %rsp\n"
        "    call outboard_nic_stands_for\n"
        "    addq $8, %rsp\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    testq %rax, %rax\n"
        "    jz 1f\n"
        "    cmpq $1, %rax\n"
        "    je 2f\n"
        "    ret\n"
        "2:  xorl %eax, %eax\n"
        "    ret\n"
        "1:  jmp *outboard_nic_dlsym(%rip)\n"
        ".size dlsym, . - dlsym\n");
