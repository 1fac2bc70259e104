// Two processes whose queue pairs reach each other's GPU memory: writes, reads, sends, atomics, and memory that is freed.
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#define CHECK(is) \
    if (!(is)) { \
        printf("%s, line %d: %s, errno %d\n", role, __LINE__, #is, errno); \
        fflush(stdout); \
        _exit(1); \
    }
#define FAILS(call, number) CHECK((errno = 0, !(call)) && errno == (number))

// Larger than a piece of a copy that takes two calls.
enum { BYTES = 3 << 20, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

struct end {
    uint32_t qpn, rkey;
    uint64_t address;
};

static const char *role = "parent";
static int peer_socket;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct end there;
static uint64_t device;
static uint8_t *seen;

static int (*register_host)(void *, size_t, unsigned), (*unregister_host)(void *), (*allocate_host)(void **, size_t, unsigned);
static int (*allocate)(uint64_t *, size_t), (*release)(uint64_t), (*to_host)(void *, uint64_t, size_t), (*from_host)(uint64_t, const void *, size_t);

static void *symbol(void *cuda, const char *name)
{
    void *found = dlsym(cuda, name);
    CHECK(found);
    return found;
}

static void begin_gpu(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *primary = NULL;
    CHECK(cuda);
    int (*init)(unsigned) = symbol(cuda, "cuInit"), (*retain)(void **, int) = symbol(cuda, "cuDevicePrimaryCtxRetain"), (*set)(void *) = symbol(cuda, "cuCtxSetCurrent");
    allocate = symbol(cuda, "cuMemAlloc_v2"), release = symbol(cuda, "cuMemFree_v2");
    register_host = symbol(cuda, "cuMemHostRegister_v2"), unregister_host = symbol(cuda, "cuMemHostUnregister");
    allocate_host = symbol(cuda, "cuMemHostAlloc");
    to_host = symbol(cuda, "cuMemcpyDtoH_v2"), from_host = symbol(cuda, "cuMemcpyHtoD_v2");
    CHECK(init(0) == 0 && retain(&primary, 0) == 0 && set(primary) == 0);
}

// Fills the GPU's memory, differently in each process.
static void fill(int salt)
{
    for (int i = 0; i < BYTES; i++)
        seen[i] = (uint8_t)(i * 7 + (i >> 12) + salt);
    CHECK(from_host(device, seen, BYTES) == 0);
}

static void expect(size_t at, size_t count, int salt, size_t of)
{
    CHECK(to_host(seen, device, BYTES) == 0);
    for (size_t i = 0; i < count; i++)
        CHECK(seen[at + i] == (uint8_t)((of + i) * 7 + ((of + i) >> 12) + salt));
}

static void meet(void)
{
    char ready = 0;
    CHECK(write(peer_socket, &ready, 1) == 1 && read(peer_socket, &ready, 1) == 1);
}

// Rings of a kernel, in host memory: not in memory of which a server has a copy while the kernel runs.
static void make_rings(void)
{
    void *pages = aligned_alloc(4096, 8192), *pinned = NULL;
    memset(pages, 0, 8192);
    struct mlx5dv_devx_umem *taken = mlx5dv_devx_umem_reg(context, pages, 8192, IBV_ACCESS_LOCAL_WRITE);
    CHECK(taken && mlx5dv_devx_umem_dereg(taken) == 0 && register_host(pages, 8192, 2) == 0);
    FAILS(mlx5dv_devx_umem_reg(context, (char *)pages + 4096, 4096, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
    CHECK(unregister_host(pages) == 0 && allocate_host(&pinned, 8192, 2) == 0);
    taken = mlx5dv_devx_umem_reg(context, pinned, 8192, IBV_ACCESS_LOCAL_WRITE);
    CHECK(taken && mlx5dv_devx_umem_dereg(taken) == 0);
    free(pages);
}

static void make(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK((context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
    ibv_free_device_list(list);
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 2, 1, 0}};
    CHECK(qp = ibv_create_qp(pd, &asked));
    FAILS(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, ALL), EOPNOTSUPP);  // no driver is loaded
    begin_gpu();
    make_rings();
    CHECK((seen = malloc(BYTES)) && allocate(&device, BYTES) == 0);
    CHECK(mr = ibv_reg_mr(pd, (void *)device, BYTES, ALL | IBV_ACCESS_RELAXED_ORDERING));
    // Part of the allocation, and pages around it; not what is beyond.
    struct ibv_mr *part = ibv_reg_mr_iova2(pd, (void *)(device + 100), 1000, 0x1000, ALL), *pages = ibv_reg_mr(pd, (void *)(device - 2048), BYTES + 4096, ALL);
    CHECK(part && pages && ibv_dereg_mr(part) == 0 && ibv_dereg_mr(pages) == 0);
    FAILS(ibv_reg_mr(pd, (void *)device, (size_t)1 << 40, ALL), EFAULT);
    FAILS(ibv_reg_dmabuf_mr(pd, 0, 4096, device, -1, ALL), EBADF);
    FAILS(ibv_reg_dmabuf_mr(pd, 0, 4096, (uint64_t)seen, peer_socket, ALL), EOPNOTSUPP);
    CHECK((part = ibv_reg_dmabuf_mr(pd, 0, 4096, device, peer_socket, ALL)) && ibv_dereg_mr(part) == 0);
}

static void connect_to(uint32_t peer)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET}, attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
    CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer, .max_dest_rd_atomic = 4};
    attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1, attr.ah_attr.grh.dgid = gid;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void join(void)
{
    struct end here = {qp->qp_num, mr->rkey, device};
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0);
    CHECK(write(peer_socket, &here, sizeof here) == sizeof here && read(peer_socket, &there, sizeof there) == sizeof there);
    connect_to(there.qpn);
    meet();
}

// Returns the status of the next completion.
static int status(void)
{
    struct ibv_wc next;
    time_t end = time(NULL) + 60;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &next)) == 0 && time(NULL) < end) {
    }
    CHECK(polled == 1);
    return next.status;
}

static int does(int opcode, size_t at, uint32_t bytes, size_t remote)
{
    struct ibv_sge from = {device + at, bytes, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &from, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        wr.wr.atomic.remote_addr = there.address + remote, wr.wr.atomic.rkey = there.rkey, wr.wr.atomic.compare_add = 5;
    else
        wr.wr.rdma.remote_addr = there.address + remote, wr.wr.rdma.rkey = there.rkey;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    return status();
}

// A queue pair that is its own peer, as NCCL has one to flush what arrived: it reads a byte of the GPU's memory.
static void flush(void)
{
    static int word = -1;
    struct ibv_mr *host = ibv_reg_mr(pd, &word, sizeof word, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_sge into = {(uint64_t)&word, 1, host->lkey};
    struct ibv_send_wr wr = {.sg_list = &into, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED}, *bad;
    connect_to(qp->qp_num);
    wr.wr.rdma.remote_addr = device + 77, wr.wr.rdma.rkey = mr->rkey;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0 && status() == IBV_WC_SUCCESS && (uint8_t)word == seen[77] && word >> 8 == -1);
    CHECK(ibv_dereg_mr(host) == 0);
}

static void parent(void)
{
    meet();
    CHECK(does(IBV_WR_RDMA_WRITE, 10, 2500001, 33) == IBV_WC_SUCCESS);
    meet();  // which looks, and fills its own
    meet();
    CHECK(does(IBV_WR_RDMA_READ, 0, 2000003, 4097) == IBV_WC_SUCCESS);
    expect(0, 2000003, 2, 4097);
    CHECK(does(IBV_WR_SEND, 5, 70000, 0) == IBV_WC_SUCCESS);
    uint64_t word = 40;
    meet();
    CHECK(does(IBV_WR_ATOMIC_FETCH_AND_ADD, 16, 8, 8) == IBV_WC_SUCCESS && to_host(&word, device + 16, 8) == 0 && word == 1000);
    meet();
    CHECK(does(IBV_WR_RDMA_WRITE, 0, 64, BYTES - 63) == IBV_WC_REM_ACCESS_ERR);
    meet();  // which frees its memory, and makes other
    join();
    CHECK(does(IBV_WR_RDMA_WRITE, 0, 64, 0) == IBV_WC_REM_ACCESS_ERR);
    meet();
    join();
    CHECK(does(IBV_WR_RDMA_READ, 0, 64, 0) == IBV_WC_REM_ACCESS_ERR);
    meet();
    CHECK(release(device) == 0);
    join();
    CHECK(does(IBV_WR_RDMA_WRITE, 0, 64, 0) == IBV_WC_LOC_PROT_ERR);
    FAILS(ibv_reg_mr(pd, (void *)device, 4096, ALL), EFAULT);
    meet();
}

static void child(void)
{
    uint64_t word = 1000;
    meet();
    meet();
    expect(33, 2500001, 1, 10);
    fill(2);
    struct ibv_sge into = {device + 512, 80000, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &into, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
    meet();
    CHECK(status() == IBV_WC_SUCCESS);
    expect(512, 70000, 2, 4097 + 5);
    CHECK(from_host(device + 8, &word, 8) == 0);
    meet();
    meet();
    CHECK(to_host(&word, device + 8, 8) == 0 && word == 1005);
    meet();
    uint64_t other = 0;
    CHECK(release(device) == 0 && allocate(&other, BYTES) == 0);
    join();
    meet();
    join();
    meet();
    join();
    meet();
    CHECK(release(other) == 0);
}

int main(void)
{
    int ends[2], ended = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t other = fork();
    peer_socket = ends[other == 0];
    close(ends[other != 0]);
    if (other == 0)
        role = "child";
    make();
    fill(other == 0 ? 3 : 1);
    flush();
    join();
    if (other == 0) {
        child();
        _exit(0);
    }
    parent();
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(waitpid(other, &ended, 0) == other && ended == 0);
    puts("right");
    return 0;
}
