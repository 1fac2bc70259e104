// A program with rdma-core's own headers: the device, domains, memory, and functions that are not served.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#define CHECK(is) \
    if (!(is)) { \
        printf("line %d: %s, errno %d\n", __LINE__, #is, errno); \
        exit(1); \
    }
#define FAILS(call, number) CHECK((errno = 0, !(call)) && errno == (number))

static void describe(struct ibv_context *context)
{
    struct ibv_device_attr device;
    CHECK(ibv_query_device(context, &device) == 0);
    CHECK(device.vendor_id == 0x02c9 && device.phys_port_cnt == 1 && device.max_pkeys == 1 && device.max_srq == 65536);
    CHECK(device.atomic_cap == IBV_ATOMIC_HCA && device.max_qp_rd_atom == 16 && device.max_mr == 65536);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.phys_state == 5 && port.gid_tbl_len == 1);
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && gid.raw[12] == 127);
    CHECK(ibv_query_gid(context, 1, 1, &gid) == -1);
}

// No event ever comes; programs that poll see that, and those that wait are woken when the device is closed.
static void await_events(struct ibv_context *context)
{
    struct ibv_async_event event;
    struct pollfd events = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&events, 1, 0) == 0 && fcntl(events.fd, F_SETFL, fcntl(events.fd, F_GETFL) | O_NONBLOCK) == 0);
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
    CHECK(strcmp(ibv_event_type_str(IBV_EVENT_PORT_ERR), "port error") == 0 && strcmp(ibv_event_type_str(IBV_EVENT_WQ_FATAL + 1), "unknown") == 0);
}

static void register_memory(struct ibv_context *context)
{
    struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
    CHECK(pd && other && pd->context == context && pd->handle != other->handle);
    CHECK(ibv_close_device(context) != 0 && errno == EBUSY);
    char *pages = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(pages + 4096, 4096, PROT_READ) == 0 && munmap(pages + 3 * 4096, 4096) == 0);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr *mr = ibv_reg_mr(pd, pages + 7, 4000, all | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(mr && mr->pd == pd && mr->addr == pages + 7 && mr->length == 4000 && mr->lkey == mr->rkey && mr->lkey != 0);
    struct ibv_mr *more = ibv_reg_mr_iova(pd, pages, 2 * 4096, 0x10000, IBV_ACCESS_REMOTE_READ);
    CHECK(more && more->lkey != mr->lkey);
    FAILS(ibv_reg_mr(pd, pages, 2 * 4096, all), EFAULT);           // a page of it may not be written
    FAILS(ibv_reg_mr(pd, pages + 2 * 4096, 2 * 4096, 0), EFAULT);  // a page of it is not there
    FAILS(ibv_reg_mr(pd, pages, (size_t)-1, 0), EFAULT);
    FAILS(ibv_reg_mr(pd, pages, 0, 0), EINVAL);
    FAILS(ibv_reg_mr(pd, NULL, 1, 0), EINVAL);
    FAILS(ibv_reg_mr(pd, pages, 1, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    FAILS(ibv_reg_mr(pd, pages, 1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    FAILS(ibv_reg_mr(pd, pages, 1, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ), EINVAL);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(more) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other) == 0);
}

static void share_receives(struct ibv_context *context, struct ibv_pd *pd)
{
    struct ibv_srq_init_attr asked = {.attr = {.max_wr = 5, .max_sge = 1}}, wide = {.attr = {.max_wr = 5, .max_sge = 2}};
    struct ibv_srq *srq = ibv_create_srq(pd, &asked);
    CHECK(srq && srq->pd == pd && asked.attr.max_wr == 8);
    FAILS(ibv_create_srq(pd, &wide), EINVAL);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr pair = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &pair);
    CHECK(qp && qp->srq == srq && pair.cap.max_recv_wr == 0 && ibv_destroy_srq(srq) == EBUSY);
    struct ibv_recv_wr list[9] = {0}, *bad = NULL;
    for (int i = 0; i < 8; i++)
        list[i].next = &list[i + 1];
    CHECK(ibv_post_recv(qp, list, &bad) == EINVAL && bad == list);
    CHECK(ibv_post_srq_recv(srq, list, &bad) == ENOMEM && bad == &list[8]);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

// The parent's adapter is an error in a child, and no wait.
static void fork_with(struct ibv_pd *pd)
{
    static char word[8];
    int status = 0;
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &shared);
    struct ibv_cq *cq = ibv_create_cq(pd->context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr pair = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &pair);
    struct ibv_qp_attr of = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(srq && qp && ibv_modify_qp(qp, &of, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    if (fork() == 0) {
        struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send = NULL;
        struct ibv_recv_wr receive = {0}, *bad = NULL;
        CHECK(ibv_post_send(qp, &send, &bad_send) == ENODEV && bad_send == &send);
        CHECK(ibv_post_recv(qp, &receive, &bad) == ENODEV && bad == &receive);
        bad = NULL;
        CHECK(ibv_post_srq_recv(srq, &receive, &bad) == ENODEV && bad == &receive);
        FAILS(ibv_reg_mr(pd, word, sizeof word, 0), ENODEV);
        FAILS(ibv_open_device(pd->context->device), ENODEV);
        _exit(0);
    }
    CHECK(wait(&status) > 0 && status == 0);
    struct ibv_recv_wr receive = {0}, *bad = NULL;
    CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_post_srq_recv(srq, &receive, &bad) == 0);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
    int count = 0;
    CHECK(ibv_fork_init() == 0);
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1 && list[1] == NULL && strcmp(ibv_get_device_name(list[0]), "mlx5_0") == 0);
    CHECK(list[0]->node_type == IBV_NODE_CA && list[0]->transport_type == IBV_TRANSPORT_IB && mlx5dv_is_supported(list[0]));
    struct ibv_context *context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    CHECK(context && context->device->name[0] == 'm' && context->num_comp_vectors == 1);
    describe(context);
    await_events(context);
    register_memory(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    share_receives(context, pd);
    fork_with(pd);
    FAILS(ibv_create_srq(pd, NULL), EINVAL);
    CHECK(ibv_attach_mcast(NULL, NULL, 0) == EOPNOTSUPP && ibv_attach_mcast(NULL, NULL, 0) == EOPNOTSUPP);  // is said once
    FAILS(mlx5dv_devx_umem_reg_ex(context, NULL), EOPNOTSUPP);
    FAILS(mlx5dv_devx_obj_create(context, NULL, 0, NULL, 0), EOPNOTSUPP);
    struct mlx5dv_context about;
    memset(&about, 0xa5, sizeof about);
    about.comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ | MLX5DV_CONTEXT_MASK_CQE_COMPRESION;
    CHECK(mlx5dv_query_device(context, &about) == 0 && about.comp_mask == 0 && about.flags == MLX5DV_CONTEXT_FLAGS_CQE_V1);
    // What is asked for is not there, and what is not asked for may be behind the program's memory.
    CHECK(about.cqe_comp_caps.max_num == 0 && about.striding_rq_caps.supported_qpts == 0 && about.tunnel_offloads_caps == 0xa5a5a5a5);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("right");
    return 0;
}
