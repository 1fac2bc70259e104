/* A driver whose device memory is this process's own and whose GPU is done at once, unless it is held: enough to try the
   server's bookkeeping against. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600, UPDATE_FAILURE = 910, UNKNOWN = 999 };
typedef int result;
typedef struct { atomic_int context; atomic_int held; } event;

static _Thread_local uintptr_t current;
static atomic_int running; /* Host functions. */
static atomic_int held, live_mappings, live_events, live_streams, live_contexts, live_pinned, live_registered, live_memory;
static size_t memory_left = 64 << 20;

/* A kernel that runs as long as the byte has this value; a memset to it starts one. */
enum { WAITING = 0xee };
static volatile unsigned char *_Atomic waited_for;
static int waits_for_word(void) {
  volatile unsigned char *at = waited_for;
  if (at && *at == WAITING) return 1;
  waited_for = 0;
  return 0;
}

/* For the tests. */
void fake_hold(int on) { held = on; }
int fake_live(void) {
  return live_mappings + live_events + live_streams + live_contexts + live_pinned + live_registered + live_memory;
}
int fake_mappings(void) { return live_mappings; }
int fake_pinned(void) { return live_pinned; }

// What a test of a whole server sets: a number in a file of the folder that FAKE_DRIVER names.
static long setting(const char *name, long otherwise) {
  const char *folder = getenv("FAKE_DRIVER");
  char path[4096];
  if (!folder || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return otherwise;
  FILE *file = fopen(path, "r");
  if (!file) return otherwise;
  if (fscanf(file, "%ld", &otherwise) != 1) otherwise = 0;
  fclose(file);
  return otherwise;
}

static atomic_long free_mib = 512;
int fake_free_mib(int mib) { free_mib = mib; return 0; }

result cuInit(unsigned flags) { usleep(1000 * setting("init_ms", 0)); return flags ? INVALID_VALUE : SUCCESS; }
result cuDriverGetVersion(int *v) { *v = 13000; return SUCCESS; }
result cuDeviceGetCount(int *n) { *n = 1; return SUCCESS; }
result cuDeviceGet(int *d, int ordinal) { *d = ordinal; return ordinal ? INVALID_VALUE : SUCCESS; }
result cuDeviceGetAttribute(int *v, int a, int d) {
  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, of which a client of MPS sees its part.
  const char *percent = setting("mps", 0) ? getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") : NULL;
  *v = a == 20 ? (int)setting("compute_mode", 0) : a == 16 && percent ? a * 10 * atoi(percent) / 100 : a * 10;
  return a == 3 || d ? INVALID_VALUE : SUCCESS;
}
result cuDeviceGetExecAffinitySupport(int *v, int kind, int d) { *v = kind == 0 && setting("mps", 0); return SUCCESS; }
result cuDeviceGetUuid_v2(unsigned char *u, int d) { memset(u, 7, 16); return SUCCESS; }
result cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1 << 30; return SUCCESS; }
result cuDeviceGetName(char *name, int len, int d) { strncpy(name, "Fake", len); return SUCCESS; }
result cuDevicePrimaryCtxRetain(uintptr_t *c, int d) {
  if (setting("no_context", 0)) return OUT_OF_MEMORY;
  *c = 0x1000; live_contexts++; return SUCCESS;
}
result cuDevicePrimaryCtxRelease_v2(int d) { live_contexts--; return SUCCESS; }
result cuCtxCreate_v2(uintptr_t *c, unsigned flags, int d) {
  static atomic_int made;
  *c = 0x2000 + ++made; current = *c; live_contexts++; return SUCCESS;
}
result cuCtxDestroy_v2(uintptr_t c) { live_contexts--; return SUCCESS; }
result cuCtxSetCurrent(uintptr_t c) { current = c; return SUCCESS; }
static _Thread_local uintptr_t pushed;
result cuCtxPushCurrent_v2(uintptr_t c) { pushed = current; current = c; return SUCCESS; }
result cuCtxPopCurrent_v2(uintptr_t *c) { *c = current; current = pushed; return SUCCESS; }
result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
result cuMemGetInfo_v2(size_t *available, size_t *total) {
  long mib = setting("free_mib", free_mib);
  *available = (size_t)mib << 20; *total = 1 << 30;
  return mib < 0 ? UNKNOWN : SUCCESS;
}
result cuMemGetAllocationGranularity(size_t *n, const void *prop, int option) { *n = 2 << 20; return SUCCESS; }

result cuMemAddressReserve(uint64_t *p, size_t len, size_t align, uint64_t at, uint64_t flags) {
  void *m = mmap((void *)at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  *p = (uint64_t)m;
  return m == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}
// A driver that never comes to an end, in a call or when the process exits.
static void stay(void) { while (setting("stays", 0)) usleep(1000); }
__attribute__((destructor)) static void at_exit(void) { stay(); }
result cuMemAddressFree(uint64_t p, size_t len) { stay(); return munmap((void *)p, len) ? INVALID_VALUE : SUCCESS; }
typedef struct { int fd; size_t len; } physical;
result cuMemCreate(physical **h, size_t len, const void *prop, uint64_t flags) {
  if (len > memory_left) return OUT_OF_MEMORY;
  memory_left -= len;
  *h = malloc(sizeof **h);
  (*h)->fd = memfd_create("fake", 0);
  (*h)->len = len;
  live_memory++;
  return ftruncate((*h)->fd, len) ? OUT_OF_MEMORY : SUCCESS;
}
result cuMemRelease(physical *h) { memory_left += h->len; close(h->fd); free(h); live_memory--; return SUCCESS; }
result cuMemExportToShareableHandle(int *fd, physical *h, int type, uint64_t flags) {
  *fd = dup(h->fd);
  return type == 1 ? SUCCESS : INVALID_VALUE;
}
result cuMemImportFromShareableHandle(physical **h, void *fd, int type) {
  struct stat s;
  if (type != 1 || fstat((int)(intptr_t)fd, &s)) return INVALID_VALUE;
  *h = malloc(sizeof **h);
  **h = (physical){dup((int)(intptr_t)fd), s.st_size};
  memory_left -= s.st_size;
  live_memory++;
  return SUCCESS;
}
result cuMemMap(uint64_t p, size_t len, size_t offset, physical *h, uint64_t flags) {
  live_mappings++;
  return mmap((void *)p, len, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, offset) == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}
result cuMemSetAccess(uint64_t p, size_t len, const int *desc, size_t n) {
  return mprotect((void *)p, len, desc[2] == 3 ? PROT_READ | PROT_WRITE : PROT_READ) ? INVALID_VALUE : SUCCESS;
}
result cuMemUnmap(uint64_t p, size_t len) {
  live_mappings--;
  return mmap((void *)p, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED;
}
result cuMemHostAlloc(void **p, size_t len, unsigned flags) { *p = malloc(len); live_pinned++; return SUCCESS; }
result cuMemFreeHost(void *p) {
  if (!current) return INVALID_CONTEXT;
  free(p); live_pinned--; return SUCCESS;
}
static struct { uintptr_t at; size_t len; } registered[64];
static int is_host(uint64_t p) {
  for (int i = 0; i < 64; i++) if (p - registered[i].at < registered[i].len) return 1;
  return 0;
}
result cuMemHostRegister_v2(void *p, size_t len, unsigned flags) {
  registered[live_registered % 64].at = (uintptr_t)p; registered[live_registered % 64].len = len;
  live_registered++; return SUCCESS;
}
result cuMemHostUnregister(void *p) {
  if (!current) return INVALID_CONTEXT;
  while (running || waits_for_word()) usleep(100);
  live_registered--; return SUCCESS;
}
result cuMemHostGetDevicePointer_v2(uint64_t *d, void *p, unsigned flags) { *d = (uint64_t)p; return SUCCESS; }

typedef struct { size_t max_size; } pool;
static atomic_int live_bounces, pools_refuse;
static size_t reserved;
static atomic_int unseen; /* Whether memory of a pool was freed since an event was waited for. */
void fake_pools_refuse(int on) { pools_refuse = on; }
int fake_bounces(void) { return live_bounces; }
result cuMemPoolCreate(pool **p, const void *prop) { *p = calloc(1, sizeof **p); live_memory++; return SUCCESS; }
result cuMemPoolSetAttribute(pool *p, int attribute, void *value) { return SUCCESS; }
result cuMemPoolGetAttribute(pool *p, int attribute, void *value) {
  *(uint64_t *)value = reserved;
  return attribute == 5 ? SUCCESS : INVALID_VALUE;
}
result cuMemAllocFromPoolAsync(uint64_t *p, size_t len, pool *from, uintptr_t stream) {
  if (pools_refuse || setting("pools_refuse", 0) || len > 64 << 20) return OUT_OF_MEMORY;
  if (len > reserved) { memory_left -= len - reserved; reserved = len; }
  *p = (uint64_t)malloc(len); live_memory++; live_bounces++;
  return SUCCESS;
}
result cuMemPoolTrimTo(pool *p, size_t keep) {
  // As NVIDIA's may: memory that a stream has freed counts once the host has seen the stream's end.
  if (!unseen) { memory_left += reserved; reserved = 0; }
  return SUCCESS;
}
result cuMemPoolDestroy(pool *p) { unseen = 0; cuMemPoolTrimTo(p, 0); free(p); live_memory--; return SUCCESS; }
result cuMemFreeAsync(uint64_t p, uintptr_t stream) { free((void *)p); live_memory--; unseen = 1; return SUCCESS; }

// As NVIDIA's, which has more room: a stream takes no more work behind a host function that runs.
static atomic_int behind;
static void one_more(void) {
  if (!running) behind = 0;
  else if (++behind > 100) while (running) usleep(100);
}
result cuMemcpyAsync(uint64_t dst, uint64_t src, size_t len, uintptr_t stream) {
  // As NVIDIA's: from host memory to host memory it waits for all earlier work.
  while ((running || waits_for_word()) && is_host(dst) && is_host(src)) usleep(100);
  one_more();
  memmove((void *)dst, (void *)src, len);
  return SUCCESS;
}
typedef struct {
  size_t x, y, z, lod;
  int type;
  uint64_t host, device, array, reserved;
  size_t pitch, height;
} box_end;
result cuMemcpy3DAsync_v2(const struct { box_end src, dst; size_t width, height, depth; } *c, uintptr_t stream) {
  uint64_t src = c->src.type == 1 ? c->src.host : c->src.device, dst = c->dst.type == 1 ? c->dst.host : c->dst.device;
  while ((running || waits_for_word()) && is_host(dst) && is_host(src)) usleep(100);
  one_more();
  for (size_t z = 0; z < c->depth; z++)
    for (size_t y = 0; y < c->height; y++)
      memmove((void *)(dst + ((z + c->dst.z) * c->dst.height + y + c->dst.y) * c->dst.pitch + c->dst.x),
              (void *)(src + ((z + c->src.z) * c->src.height + y + c->src.y) * c->src.pitch + c->src.x), c->width);
  return SUCCESS;
}
result cuMemsetD8Async(uint64_t dst, unsigned char value, size_t len, uintptr_t stream) {
  memset((void *)dst, value, len);
  if (value == WAITING) waited_for = (void *)dst;
  return SUCCESS;
}
result cuMemsetD8_v2(uint64_t dst, unsigned char value, size_t len) { return cuMemsetD8Async(dst, value, len, 0); }
result cuStreamCreateWithPriority(uintptr_t *s, unsigned flags, int priority) {
  static atomic_int made;
  *s = current << 12 | (0x100 + ++made); live_streams++; return SUCCESS;
}
static int captured; /* Whether any stream captures. */
static uintptr_t captures;
result cuStreamDestroy_v2(uintptr_t s) {
  if (s == captures) captured = 0;
  live_streams--; return SUCCESS;
}
static atomic_int waits;
int fake_waits(void) { return waits; }
result cuStreamWaitEvent(uintptr_t s, event *e, unsigned flags) { waits++; return SUCCESS; }

// Graphs without nodes: of interest is by which thread they are launched.
static atomic_int launched_aside;
static pthread_t session;
int fake_launched_aside(void) { return launched_aside; }
static result object(uintptr_t *of) { *of = (uintptr_t)malloc(1); return SUCCESS; }
result cuGraphCreate(uintptr_t *g, unsigned flags) { return object(g); }
result cuGraphDestroy(uintptr_t g) { free((void *)g); return SUCCESS; }
result cuGraphClone(uintptr_t *g, uintptr_t of) { return object(g); }
result cuGraphAddMemcpyNode(uintptr_t *n, uintptr_t g, const void *after, size_t count, const void *copy, uintptr_t c) {
  return object(n);
}
result cuGraphAddChildGraphNode(uintptr_t *n, uintptr_t g, const void *after, size_t count, uintptr_t child) {
  return object(n);
}
result cuGraphChildGraphNodeGetGraph(uintptr_t n, uintptr_t *g) { return object(g); }
result cuGraphMemcpyNodeSetParams(uintptr_t n, const void *copy) { return SUCCESS; }
result cuGraphExecMemcpyNodeSetParams(uintptr_t e, uintptr_t n, const void *copy, uintptr_t c) { return SUCCESS; }
result cuGraphInstantiateWithFlags(uintptr_t *e, uintptr_t g, uint64_t flags) { session = pthread_self(); return object(e); }
static int updates_fail;
void fake_updates_fail(int on) { updates_fail = on; }
result cuGraphExecUpdate_v2(uintptr_t e, uintptr_t g, void *info) {
  memset(info, 0, 24);
  *(int *)info = updates_fail;
  return updates_fail ? UPDATE_FAILURE : SUCCESS;
}
result cuGraphExecDestroy(uintptr_t e) { free((void *)e); return SUCCESS; }
result cuGraphLaunch(uintptr_t e, uintptr_t s) { launched_aside += !pthread_equal(session, pthread_self()); return SUCCESS; }
static uintptr_t graph_of_capture;
static int captures_fail;
void fake_captures_fail(int on) { captures_fail = on; }
result cuStreamBeginCapture_v2(uintptr_t s, int mode) { captured = 1; captures = s; return object(&graph_of_capture); }
result cuStreamBeginCaptureToGraph(uintptr_t s, uintptr_t g, const void *after, const void *data, size_t count, int mode) {
  captured = 1; captures = s; graph_of_capture = g;
  return SUCCESS;
}
result cuStreamIsCapturing(uintptr_t s, int *capturing) { *capturing = captured; return SUCCESS; }
result cuStreamGetCaptureInfo_v3(uintptr_t s, int *status, uint64_t *id, uintptr_t *g, void *nodes, void *edges, size_t *n) {
  // Of a capture that has failed, only that is told.
  *status = captures_fail ? 2 : captured; *id = captures_fail ? 0 : 1; *g = captures_fail ? 0 : graph_of_capture; *n = 0;
  return SUCCESS;
}
result cuStreamEndCapture(uintptr_t s, uintptr_t *g) {
  captured = 0;
  if (captures_fail) return INVALID_VALUE;
  *g = graph_of_capture;
  return SUCCESS;
}
result cuEventCreate(event **e, unsigned flags) {
  *e = calloc(1, sizeof **e); (*e)->context = current; live_events++; return SUCCESS;
}
typedef struct { char bytes[64]; } ipc_handle;
result cuIpcGetEventHandle(ipc_handle *h, event *e) { memset(h, 0, sizeof *h); strcpy(h->bytes, "an event"); return SUCCESS; }
result cuIpcOpenEventHandle(event **e, ipc_handle h) {
  return strcmp(h.bytes, "an event") ? INVALID_VALUE : cuEventCreate(e, 6);
}
result cuEventDestroy_v2(event *e) { free(e); live_events--; return SUCCESS; }
static atomic_int default_marks;
int fake_default_marks(void) { return default_marks; }
result cuEventRecordWithFlags(event *e, uintptr_t s, unsigned flags) {
  default_marks += s == 0;
  uintptr_t of = s >> 12 ? s >> 12 : current;
  if (e->context != (int)of) return INVALID_HANDLE;
  e->held = held ? 1 : waits_for_word() ? 2 : running ? 3 : 0;
  return SUCCESS;
}
result cuEventSynchronize(event *e) { unseen = 0; return SUCCESS; }
static atomic_int event_queries;
int fake_event_queries(void) { return event_queries; }
result cuEventQuery(event *e) {
  event_queries++;
  int is_held = e->held == 1 && held || e->held == 2 && waits_for_word() || e->held == 3 && running;
  return is_held ? NOT_READY : SUCCESS;
}
result cuStreamQuery(uintptr_t s) { return held || running || waits_for_word() ? NOT_READY : SUCCESS; }
result cuStreamWriteValue64_v2(uintptr_t s, uint64_t address, uint64_t value, unsigned flags) {
  if (!held) *(volatile uint64_t *)address = value;
  return flags ? INVALID_VALUE : SUCCESS;
}

typedef struct { void (*function)(void *); void *data; } call;
static void *run(void *p) { call c = *(call *)p; free(p); c.function(c.data); running--; return 0; }
result cuLaunchHostFunc(uintptr_t s, void (*function)(void *), void *data) {
  pthread_t thread;
  call *c = malloc(sizeof *c);
  c->function = function; c->data = data;
  running++;
  pthread_create(&thread, 0, run, c);
  pthread_detach(thread);
  return SUCCESS;
}

static atomic_int live_libraries, modules_fail;
int fake_libraries(void) { return live_libraries; }
void fake_modules_fail(int on) { modules_fail = on; }
result cuLibraryLoadData(uintptr_t *library, const void *image, int *jit, void **jv, unsigned n, int *options, void **v,
                         unsigned m) {
  *library = 0x3000; live_libraries++;
  return SUCCESS;
}
result cuLibraryUnload(uintptr_t library) { live_libraries--; return SUCCESS; }
result cuLibraryGetModule(uintptr_t *module, uintptr_t library) {
  *module = 0x3001;
  return modules_fail ? OUT_OF_MEMORY : SUCCESS;
}
/* Loads the code, for which it waits until no stream is held up by a host function. */
static uint64_t variables[2];
result cuLibraryGetGlobal(uint64_t *address, size_t *len, uintptr_t library, const char *name) {
  while (running) usleep(100);
  *address = (uint64_t)&variables[0]; *len = 8;
  return SUCCESS;
}
/* Knows the plain variable as device memory, which reaches past it. */
result cuPointerGetAttributes(unsigned n, const unsigned *which, void **out, uint64_t address) {
  uint64_t base = (uint64_t)&variables[0];
  int known = address >= base && address < base + 16;
  for (unsigned i = 0; i < n; i++) {
    switch (which[i]) {
    case 2: *(unsigned *)out[i] = known ? 2 : 0; break;
    case 8: *(unsigned *)out[i] = 0; break;
    case 9: *(int *)out[i] = known ? 0 : -2; break;
    case 11: *(uint64_t *)out[i] = known ? base : 0; break;
    case 12: *(uint64_t *)out[i] = known ? 16 : 0; break;
    }
  }
  return SUCCESS;
}
result cuLibraryGetManaged(uint64_t *address, size_t *len, uintptr_t library, const char *name) {
  if (strcmp(name, "managed")) abort();
  *address = (uint64_t)&variables[1]; *len = 8;
  return SUCCESS;
}
