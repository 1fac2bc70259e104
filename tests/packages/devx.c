// Queues made by commands, as GPUNetIO's host library makes them: its header has the commands' fields, rdma-core's the
// entries and completions. Two queue pairs exchange data, of two processes and of one; and what the device says of itself.
#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

typedef uint8_t u8;
#include "mlx5_ifc.h"
#include "mlx5_prm.h"

enum { LOG = 4, ENTRIES = 1 << LOG, RECEIVES = 16 * ENTRIES, RECORD = 4096, COMPLETIONS = 8192, PAIR_BYTES = 16384 };
enum { CREATE_CQ = 0x400, CREATE_QP = 0x500, RST2INIT = 0x502, INIT2RTR = 0x503, RTR2RTS = 0x504, TO_RST = 0x50a, QUERY_QP = 0x50b };

#define CHECK(is) \
    if (!(is)) { \
        printf("line %d: %s, errno %d\n", __LINE__, #is, errno); \
        exit(1); \
    }
#define COMMAND(type, name) uint32_t name[DEVX_ST_SZ_DW(type)] = {0}

// Memory of a pair: receives, the ring behind them, a doorbell record, and completions.
struct pair {
    struct mlx5dv_devx_umem *memory;
    struct mlx5dv_devx_uar *page;
    struct mlx5dv_devx_obj *completions, *object;
    uint8_t *bytes;
    uint32_t number, cqn;
    uint16_t next;
    uint32_t seen;
};

static struct ibv_context *context;
static uint32_t domain;

static struct mlx5dv_devx_obj *create(const void *in, size_t bytes, uint32_t *number)
{
    COMMAND(create_qp_out, out);
    struct mlx5dv_devx_obj *object = mlx5dv_devx_obj_create(context, in, bytes, out, sizeof out);
    if (object) *number = DEVX_GET(create_qp_out, out, qpn);
    return object;
}

static void create_completions(struct pair *pair)
{
    COMMAND(create_cq_in, in);
    void *cqc = DEVX_ADDR_OF(create_cq_in, in, cq_context);
    DEVX_SET(create_cq_in, in, opcode, CREATE_CQ);
    DEVX_SET(create_cq_in, in, cq_umem_valid, 1);
    DEVX_SET(create_cq_in, in, cq_umem_id, pair->memory->umem_id);
    DEVX_SET64(create_cq_in, in, cq_umem_offset, COMPLETIONS);
    DEVX_SET(cqc, cqc, dbr_umem_valid, 1);
    DEVX_SET(cqc, cqc, dbr_umem_id, pair->memory->umem_id);
    DEVX_SET64(cqc, cqc, dbr_addr, RECORD + 64);
    DEVX_SET(cqc, cqc, log_cq_size, LOG + 1);
    DEVX_SET(cqc, cqc, uar_page, pair->page->page_id);
    DEVX_SET(cqc, cqc, oi, 1);
    pair->completions = create(in, sizeof in, &pair->cqn);
    CHECK(pair->completions);
}

static struct mlx5dv_devx_obj *create_pair(struct pair *pair, uint32_t page, uint32_t rq_type, uint32_t *number)
{
    COMMAND(create_qp_in, in);
    void *qpc = DEVX_ADDR_OF(create_qp_in, in, qpc);
    DEVX_SET(create_qp_in, in, opcode, CREATE_QP);
    DEVX_SET(create_qp_in, in, wq_umem_valid, 1);
    DEVX_SET(create_qp_in, in, wq_umem_id, pair->memory->umem_id);
    DEVX_SET(qpc, qpc, pd, domain);
    DEVX_SET(qpc, qpc, uar_page, page);
    DEVX_SET(qpc, qpc, cqn_snd, pair->cqn);
    DEVX_SET(qpc, qpc, cqn_rcv, pair->cqn);
    DEVX_SET(qpc, qpc, log_sq_size, LOG);
    DEVX_SET(qpc, qpc, log_rq_size, LOG);
    DEVX_SET(qpc, qpc, rq_type, rq_type);
    DEVX_SET(qpc, qpc, dbr_umem_valid, 1);
    DEVX_SET(qpc, qpc, dbr_umem_id, pair->memory->umem_id);
    DEVX_SET64(qpc, qpc, dbr_addr, RECORD);
    return create(in, sizeof in, number);
}

static struct pair make(void)
{
    struct pair pair = {0};
    pair.bytes = aligned_alloc(4096, PAIR_BYTES);
    memset(pair.bytes, 0, PAIR_BYTES);
    pair.memory = mlx5dv_devx_umem_reg(context, pair.bytes, PAIR_BYTES, IBV_ACCESS_LOCAL_WRITE);
    pair.page = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    CHECK(pair.memory && pair.page && pair.page->reg_addr == (char *)pair.page->base_addr + 0x800);
    create_completions(&pair);
    pair.object = create_pair(&pair, pair.page->page_id, 0, &pair.number);
    CHECK(pair.object);
    return pair;
}

static int modify(struct pair *pair, int opcode, uint32_t remote)
{
    COMMAND(init2rtr_qp_in, in);
    COMMAND(create_qp_out, out);
    void *qpc = DEVX_ADDR_OF(init2rtr_qp_in, in, qpc);
    DEVX_SET(init2rtr_qp_in, in, opcode, opcode);
    DEVX_SET(init2rtr_qp_in, in, qpn, pair->number);
    DEVX_SET(qpc, qpc, remote_qpn, remote);
    CHECK(ibv_query_gid(context, 1, 0, DEVX_ADDR_OF(qpc, qpc, primary_address_path.rgid_rip)) == 0);
    if (opcode == INIT2RTR) {
        // Another folder's adapter is not reached.
        *(uint8_t *)DEVX_ADDR_OF(qpc, qpc, primary_address_path.rgid_rip[14]) ^= 1;
        CHECK(mlx5dv_devx_obj_modify(pair->object, in, sizeof in, out, sizeof out) == EINVAL);
        *(uint8_t *)DEVX_ADDR_OF(qpc, qpc, primary_address_path.rgid_rip[14]) ^= 1;
    }
    return mlx5dv_devx_obj_modify(pair->object, in, sizeof in, out, sizeof out);
}

static unsigned state(struct pair *pair)
{
    uint32_t in[4] = {htobe32(QUERY_QP << 16), 0, htobe32(pair->number), 0}, out[68];
    CHECK(mlx5dv_devx_obj_query(pair->object, in, sizeof in, out, sizeof out) == 0);
    return be32toh(out[6]) >> 28;
}

static void join(struct pair *one, struct pair *other)
{
    CHECK(modify(one, RST2INIT, 0) == 0 && modify(other, RST2INIT, 0) == 0);
    CHECK(modify(one, INIT2RTR, other->number) == 0 && modify(other, INIT2RTR, one->number) == 0);
    CHECK(modify(one, RTR2RTS, 0) == 0 && modify(other, RTR2RTS, 0) == 0);
    CHECK(state(one) == MLX5_QPC_STATE_RTS);
}

// Posts an entry: blocks, record, doorbell.
static void post(struct pair *pair, int opcode, uint64_t remote, uint32_t rkey, void *local, uint32_t lkey, uint32_t bytes)
{
    uint8_t *entry = pair->bytes + RECEIVES + (pair->next % ENTRIES) * 64;
    int segments = opcode == MLX5_OPCODE_SEND ? 2 : opcode == MLX5_OPCODE_ATOMIC_FA ? 4 : 3;
    mlx5dv_set_ctrl_seg((void *)entry, pair->next, opcode, 0, pair->number, MLX5_WQE_CTRL_CQ_UPDATE, segments, 0, 0);
    if (segments > 2) {
        struct mlx5_wqe_raddr_seg *at = (void *)(entry + 16);
        at->raddr = htobe64(remote), at->rkey = htobe32(rkey), at->reserved = 0;
    }
    if (segments > 3) {
        struct mlx5_wqe_atomic_seg *at = (void *)(entry + 32);
        at->swap_add = htobe64(5), at->compare = 0;
    }
    mlx5dv_set_data_seg((void *)(entry + 16 * (segments - 1)), bytes, lkey, (uintptr_t)local);
    pair->next += 1;
    __atomic_store_n((uint32_t *)(pair->bytes + RECORD) + MLX5_SND_DBR, htobe32(pair->next), __ATOMIC_RELEASE);
    __atomic_store_n((uint64_t *)pair->page->reg_addr, *(uint64_t *)entry, __ATOMIC_RELEASE);
}

// The next completion, within 10 s: its opcode, or 100 and its syndrome.
static int completed(struct pair *pair)
{
    struct mlx5_cqe64 *cqe = (struct mlx5_cqe64 *)(pair->bytes + COMPLETIONS) + pair->seen % (2 * ENTRIES);
    time_t late = time(NULL) + 10;
    for (;;) {
        uint8_t last = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
        if (last >> 4 != MLX5_CQE_INVALID && (last & 1) == (pair->seen / (2 * ENTRIES) & 1)) break;
        CHECK(time(NULL) < late);
        sched_yield();
    }
    pair->seen += 1;
    int opcode = mlx5dv_get_cqe_opcode(cqe);
    return opcode < 13 ? opcode : 100 + ((struct mlx5_err_cqe *)cqe)->syndrome;
}

static void exchange(struct pair *one, struct pair *other, uint64_t *words, uint32_t key)
{
    for (uint64_t round = 1; round <= 100; ++round) {
        words[0] = round << 32 | 7;
        post(one, MLX5_OPCODE_RDMA_WRITE, (uintptr_t)&words[8], key, &words[0], key, 8);
        CHECK(completed(one) == MLX5_CQE_REQ && words[8] == words[0]);
        post(one, MLX5_OPCODE_RDMA_READ, (uintptr_t)&words[8], key, &words[1], key, 8);
        CHECK(completed(one) == MLX5_CQE_REQ && words[1] == words[0]);
        words[9] = round;
        post(one, MLX5_OPCODE_ATOMIC_FA, (uintptr_t)&words[9], key, &words[2], key, 8);
        CHECK(completed(one) == MLX5_CQE_REQ && words[2] == round && words[9] == round + 5);
        struct mlx5_wqe_data_seg *receive = (struct mlx5_wqe_data_seg *)other->bytes + (round - 1) % ENTRIES;
        mlx5dv_set_data_seg(receive, 8, key, (uintptr_t)&words[10]);
        __atomic_store_n((uint32_t *)(other->bytes + RECORD) + MLX5_RCV_DBR, htobe32(round), __ATOMIC_RELEASE);
        post(one, MLX5_OPCODE_SEND, 0, 0, &words[0], key, 8);
        CHECK(completed(one) == MLX5_CQE_REQ && completed(other) == MLX5_CQE_RESP_SEND && words[10] == words[0]);
    }
}

static void query(struct ibv_pd *pd)
{
    COMMAND(query_hca_cap_in, in);
    COMMAND(query_hca_cap_out, out);
    void *can = DEVX_ADDR_OF(query_hca_cap_out, out, capability);
    DEVX_SET(query_hca_cap_in, in, opcode, MLX5_CMD_OP_QUERY_HCA_CAP);
    DEVX_SET(query_hca_cap_in, in, op_mod, MLX5_SET_HCA_CAP_OP_MOD_GENERAL_DEVICE | 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == 0 && DEVX_GET(query_hca_cap_out, out, status) == 0);
    CHECK(DEVX_GET(cmd_hca_cap, can, port_type) == MLX5_CAP_PORT_TYPE_ETH && DEVX_GET(cmd_hca_cap, can, rc) == 1 && DEVX_GET(cmd_hca_cap, can, roce) == 1);
    CHECK(DEVX_GET(cmd_hca_cap, can, log_max_qp_sz) == 15 && DEVX_GET(cmd_hca_cap, can, max_wqe_sz_sq) == 1024 && DEVX_GET(cmd_hca_cap, can, hca_cap_2) == 0);
    DEVX_SET(query_hca_cap_in, in, op_mod, MLX5_SET_HCA_CAP_OP_MOD_ROCE | 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == 0 && DEVX_GET(roce_cap, can, roce_address_table_size) == 1);
    DEVX_SET(query_hca_cap_in, in, op_mod, MLX5_SET_HCA_CAP_OP_MOD_GENERAL_DEVICE_CAP_2 | 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof in, out, sizeof out) == EOPNOTSUPP);
    COMMAND(query_roce_address_in, ask);
    uint32_t address[DEVX_ST_SZ_DW(query_roce_address_out) + DEVX_ST_SZ_DW(roce_addr_layout)];
    DEVX_SET(query_roce_address_in, ask, opcode, MLX5_CMD_OP_QUERY_ROCE_ADDRESS);
    CHECK(mlx5dv_devx_general_cmd(context, ask, sizeof ask, address, sizeof address) == 0);
    CHECK(DEVX_GET(query_roce_address_out, address, roce_address[0].roce_version) == MLX5_ROCE_ADDR_LAYOUT_ROCE_VERSION_VERSION_2_0);
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && memcmp(&gid, DEVX_ADDR_OF(query_roce_address_out, address, roce_address[0].source_l3_address), 16) == 0);
    DEVX_SET(query_roce_address_in, ask, roce_address_index, 1);
    CHECK(mlx5dv_devx_general_cmd(context, ask, sizeof ask, address, sizeof address) == EINVAL);
    struct ibv_ah_attr route = {.grh = {.dgid = gid, .hop_limit = 9}, .is_global = 1, .port_num = 1};
    struct ibv_ah *ah = ibv_create_ah(pd, &route);
    struct mlx5dv_ah about;
    struct mlx5dv_obj objects = {.ah = {.in = ah, .out = &about}};
    CHECK(ah && ah->pd == pd && mlx5dv_init_obj(&objects, MLX5DV_OBJ_AH) == 0);
    CHECK(about.av->hop_limit == 9 && memcmp(about.av->rgid, &gid, 16) == 0 && ibv_destroy_ah(ah) == 0);
    route.grh.dgid.raw[15] ^= 2;
    CHECK(!ibv_create_ah(pd, &route) && errno == EINVAL);
}

struct end {
    uint32_t number, key;
};

// One end of two queue pairs in two processes, which share the words' memory: the child's is written, read and sent to.
static void meet(int peer_socket, int is_child, uint64_t *words, uint32_t key)
{
    struct pair pair = make();
    struct end here = {pair.number, key}, there;
    CHECK(write(peer_socket, &here, sizeof here) == sizeof here && read(peer_socket, &there, sizeof there) == sizeof there);
    CHECK(modify(&pair, RST2INIT, 0) == 0 && modify(&pair, INIT2RTR, there.number) == 0 && modify(&pair, RTR2RTS, 0) == 0);
    if (is_child) {
        mlx5dv_set_data_seg((struct mlx5_wqe_data_seg *)pair.bytes, 8, key, (uintptr_t)&words[10]);
        __atomic_store_n((uint32_t *)(pair.bytes + RECORD) + MLX5_RCV_DBR, htobe32(1), __ATOMIC_RELEASE);
        CHECK(write(peer_socket, "", 1) == 1 && completed(&pair) == MLX5_CQE_RESP_SEND && words[10] == 50);
        CHECK(read(peer_socket, &here, 1) == 1);
        _exit(0);
    }
    for (uint64_t round = 1; round <= 50; ++round) {
        words[0] = round;
        post(&pair, MLX5_OPCODE_RDMA_WRITE, (uintptr_t)&words[8], there.key, &words[0], key, 8);
        CHECK(completed(&pair) == MLX5_CQE_REQ && words[8] == round);
        post(&pair, MLX5_OPCODE_RDMA_READ, (uintptr_t)&words[8], there.key, &words[1], key, 8);
        CHECK(completed(&pair) == MLX5_CQE_REQ && words[1] == round);
        words[9] = round;
        post(&pair, MLX5_OPCODE_ATOMIC_FA, (uintptr_t)&words[9], there.key, &words[2], key, 8);
        CHECK(completed(&pair) == MLX5_CQE_REQ && words[2] == round && words[9] == round + 5);
    }
    CHECK(read(peer_socket, &here, 1) == 1);
    post(&pair, MLX5_OPCODE_SEND, 0, 0, &words[0], key, 8);
    CHECK(completed(&pair) == MLX5_CQE_REQ);
    post(&pair, MLX5_OPCODE_RDMA_WRITE, (uintptr_t)words, there.key + 0x100, words, key, 8);
    CHECK(completed(&pair) == 100 + 0x13 && write(peer_socket, "", 1) == 1);
}

static void refuse(struct pair *pair)
{
    uint32_t number = 0, rmp[64] = {htobe32(0x90cu << 16)};
    CHECK(!create(rmp, sizeof rmp, &number) && errno == EOPNOTSUPP);
    // Two queue pairs may ring one page.
    struct mlx5dv_devx_obj *second = create_pair(pair, pair->page->page_id, 0, &number);
    CHECK(second && number != pair->number && mlx5dv_devx_obj_destroy(second) == 0);
    CHECK(!create_pair(pair, 0xfffff, 0, &number) && errno == EINVAL);
    CHECK(!create_pair(pair, pair->page->page_id, MLX5_QPC_RQ_TYPE_SRQ_RMP_XRC_SRQ_XRQ, &number) && errno == EINVAL);
    CHECK(modify(pair, INIT2RTR, 0xfffe) == EINVAL && modify(pair, INIT2RTR, pair->number + 99) == EINVAL);
    CHECK(modify(pair, 0x5ff, 0) == EOPNOTSUPP);
    CHECK(mlx5dv_devx_umem_dereg(pair->memory) == EBUSY && mlx5dv_devx_obj_destroy(pair->completions) == EBUSY);
}

int main(void)
{
    int ends[2], ended = 0;
    uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    struct ibv_device **list = ibv_get_device_list(NULL);
    context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct mlx5dv_pd about;
    struct mlx5dv_obj objects = {.pd = {.in = pd, .out = &about}};
    CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_PD) == 0);
    domain = about.pdn;
    struct ibv_mr *both = ibv_reg_mr(pd, shared, 4096, 15);
    CHECK(both);
    meet(ends[child == 0], child == 0, shared, both->lkey);
    CHECK(waitpid(child, &ended, 0) == child && ended == 0 && ibv_dereg_mr(both) == 0);
    query(pd);
    uint64_t words[16] = {0};
    struct ibv_mr *mr = ibv_reg_mr(pd, words, sizeof words, 15);
    CHECK(mr);
    struct pair one = make(), other = make();
    refuse(&one);
    CHECK(state(&one) == MLX5_QPC_STATE_RST);
    join(&one, &other);
    exchange(&one, &other, words, mr->lkey);
    // A key that opens nothing ends both, until they are put back.
    post(&one, MLX5_OPCODE_RDMA_WRITE, (uintptr_t)words, mr->rkey + 0x100, words, mr->lkey, 8);
    CHECK(completed(&one) == 100 + 0x13 && state(&one) == MLX5_QPC_STATE_ERR);
    CHECK(modify(&one, TO_RST, 0) == 0 && modify(&other, TO_RST, 0) == 0);
    memset(one.bytes + RECORD, 0, 8), memset(other.bytes + RECORD, 0, 8);
    one.next = 0;
    join(&one, &other);
    exchange(&one, &other, words, mr->lkey);
    for (struct pair *pair = &one;; pair = &other) {
        CHECK(mlx5dv_devx_obj_destroy(pair->object) == 0 && mlx5dv_devx_umem_dereg(pair->memory) == EBUSY);
        CHECK(mlx5dv_devx_obj_destroy(pair->completions) == 0 && mlx5dv_devx_umem_dereg(pair->memory) == 0);
        mlx5dv_devx_free_uar(pair->page);
        if (pair == &other) break;
    }
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("right");
    return 0;
}
