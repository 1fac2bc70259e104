// The host's side of include/outboard/net.cuh: an adapter in software, its memory and its queues. Link with
// liboutboard_net.so. Functions return 0, or -1, and then outboard_net_message() says why.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// An endpoint: of NIC an adapter and its thread.
struct outboard_net;

// A queue, for kernels by value. All addresses are those of the memory that the queue was made in, but mlx5's doorbell.
struct outboard_net_queue {
    uint64_t ring, record, doorbell, completion, counters, filled, scratch, receives, receive_completions;
    uint32_t scratch_key, qpn, log_blocks, log_receives, signal_every, flags;
};

enum outboard_net_flags {
    OUTBOARD_NET_PLAIN = 1,    // completions of the send queue lie in a ring, rather than over one another
    OUTBOARD_NET_PATIENT = 2,  // a message waits for its receive without end, rather than failing with 16
    OUTBOARD_NET_EXCLUSIVE = 4,  // one thread, warp or block posts at a time, which is cheaper
    OUTBOARD_NET_OF_GPU = 8,  // of a queue with `counters`: never given
    OUTBOARD_NET_UNRELIABLE = 32,  // an entry succeeds when it is sent, and may be lost: no get, no atomics; of NIC alone
    OUTBOARD_NET_REMOTE = 64,  // of a queue whose adapter is where the GPU is, at a server: never given
    OUTBOARD_NET_DIRECT = 16,  // of a queue of nvlink, whose ring is a page with what it may reach: never given
};

// Properties of a queue. Its ring has 2^log_blocks entries, 5 to 15, and it takes 2^log_receives receives, 1 to 15, or
// none if that is 0. One of signal_every entries asks for a completion: 0 or 1, all; 2^log_blocks - 31 at most.
// `counters` is 0, or the address of outboard_net_counters_bytes() zeroed bytes in the memory of the GPU that posts: its
// threads then agree without a way to the host, and outboard_net_reset_counters() puts such a queue back.
struct outboard_net_queue_options {
    uint32_t log_blocks, log_receives, signal_every, flags;
    uint64_t counters;
};

// Ways by which operations are executed, one for an endpoint (docs/net.md). AUTO is what OUTBOARD_NET_PROVIDER of the
// environment names, else MLX5 if there is such an adapter, else NIC.
enum outboard_net_provider {
    OUTBOARD_NET_AUTO = 0,
    OUTBOARD_NET_MLX5,    // an adapter in hardware
    OUTBOARD_NET_NIC,     // the adapter in software
    OUTBOARD_NET_NVLINK,  // loads and stores of the threads that post
    OUTBOARD_NET_PROXY,   // a thread of the program that posts for kernels, by verbs
};

// The provider, and the network between queues of NIC. Zeroed, it loses nothing and takes no time. At most 1,000,000 of
// loss_ppm; delays are from delay_ns_min to delay_ns_max, an hour at most.
struct outboard_net_options {
    uint64_t seed, delay_ns_min, delay_ns_max, bytes_per_s;
    uint32_t loss_ppm, provider;
};

// Counts since the last reset; failed_index and syndrome are of the entry that failed first.
struct outboard_net_status {
    uint64_t succeeded, flushed, retries;
    uint32_t failed_index, syndrome;
};

enum outboard_net_access {
    OUTBOARD_NET_LOCAL_WRITE = 1,
    OUTBOARD_NET_REMOTE_WRITE = 2,
    OUTBOARD_NET_REMOTE_READ = 4,
    OUTBOARD_NET_REMOTE_ATOMIC = 8,
};

// Memory that a process offers to the other; all zero, or a null pointer for `mine`, offers none.
struct outboard_net_window {
    uint64_t address, bytes;
    uint32_t key, reserved;
};

// What a program was built with. OUTBOARD_NET_VERSION is raised by changes that the sizes do not show.
#define OUTBOARD_NET_VERSION 2

struct outboard_net_layout {
    uint32_t version, queue_bytes, queue_options_bytes, options_bytes, status_bytes, window_bytes;
};

const char *outboard_net_message(void);
// The number of a provider's name: auto, mlx5, nic, nvlink, proxy.
int outboard_net_provider_named(const char *name, uint32_t *provider);
const char *outboard_net_provider_of(const struct outboard_net *net);
int outboard_net_open_as(const struct outboard_net_layout *layout, const struct outboard_net_options *options,
                         struct outboard_net **out);

// Starts an adapter, if the library is of this header.
static inline int outboard_net_open(const struct outboard_net_options *options, struct outboard_net **out)
{
    const struct outboard_net_layout layout = {OUTBOARD_NET_VERSION,
                                               sizeof(struct outboard_net_queue),
                                               sizeof(struct outboard_net_queue_options),
                                               sizeof(struct outboard_net_options),
                                               sizeof(struct outboard_net_status),
                                               sizeof(struct outboard_net_window)};
    return outboard_net_open_as(&layout, options, out);
}

// Ends the endpoint; in a forked child, which has none of its threads, nothing. Other calls there are errors.
void outboard_net_close(struct outboard_net *net);
// Memory that is mapped now, for bits of outboard_net_access: written to if there is any but REMOTE_READ.
int outboard_net_register(const struct outboard_net *net, void *memory, uint64_t bytes, uint32_t access, uint32_t *key);
// Bytes of a queue's memory: whole pages, since cudaHostAlloc aligns whole pages alone. 0 without options.
uint64_t outboard_net_queue_bytes(const struct outboard_net_queue_options *options);
// Bytes of a queue's counters, for those who have them elsewhere. 0 without options.
uint64_t outboard_net_counters_bytes(const struct outboard_net_queue_options *options);
// The memory, and `counters`, are no other queue's of this process until the adapter is closed.
int outboard_net_queue_create(const struct outboard_net *net, void *memory, uint64_t bytes,
                              const struct outboard_net_queue_options *options, struct outboard_net_queue *out);
// Queues that are not connected; one may be connected to itself.
int outboard_net_connect(const struct outboard_net *net, uint32_t one, uint32_t other);

enum outboard_net_meeting {
    OUTBOARD_NET_CONNECTS = 0,
    OUTBOARD_NET_LISTENS = 1,
    OUTBOARD_NET_ANYWHERE = 2,  // beside one of the two: other addresses than loopback, in a network that is trusted
};

// Connects a queue to one of another process, which makes the same call: one of the two listens at `address`,
// "127.0.0.1:PORT". The connection is neither authenticated nor encrypted, so that addresses of other machines have to be
// allowed by OUTBOARD_NET_ANYWHERE, on both sides. It ends with the queue's reset, and a process that ends is error 15 of
// the other's queue. Messages have at most 16 MiB. Entries travel by memory of both processes if both are of one user and
// at a loopback address of one network namespace, else over tcp; OUTBOARD_NET_WAY of the environment says `shm`, `tcp`, or
// `verbs`, which is never chosen by itself: by queue pairs of an RDMA device, which OUTBOARD_RDMA names. `theirs` is what
// the other offers, and no null pointer: that is an error.
int outboard_net_meet(const struct outboard_net *net, uint32_t qpn, const char *address, int how, uint32_t timeout_ms,
                      const struct outboard_net_window *mine, struct outboard_net_window *theirs);
// Wakes the adapter in software of a queue's doorbell. net.cuh calls it for threads of the CPU; a kernel cannot, so that a
// program may do so just before it launches one.
void outboard_net_rouse(uint64_t doorbell);
// Brings what the program has written to memory of endpoints that are at a server, and back what adapters have written
// there; returns at once if there are none. net.cuh calls it for threads of the CPU, each time that they wait. Returns 0, or
// -1 if the session with the server is lost: then what was posted to its queues and is not complete fails with 15.
int outboard_net_look(void);
// "server" if the endpoint is where the GPU is, of a program under `outboard run` whose server has a copy of the program's
// memory (every link but shm, and shm with an emulated network); else "program". Known from the first queue or registration on.
const char *outboard_net_place_of(const struct outboard_net *net);
// "shm", "tcp" or "verbs", as the queue's entries travel; null if it has not met one of another process by an adapter.
const char *outboard_net_way_of(const struct outboard_net *net, uint32_t qpn);
int outboard_net_reset(const struct outboard_net *net, uint32_t qpn);
// The same for a queue with `counters`, which no kernel uses now: `copy` holds them, and the new ones afterwards, to be
// copied back.
int outboard_net_reset_counters(const struct outboard_net *net, uint32_t qpn, void *copy);
int outboard_net_status_of(const struct outboard_net *net, uint32_t qpn, struct outboard_net_status *out);

#ifdef __cplusplus
}
#endif
