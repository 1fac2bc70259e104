// What NVSHMEM asks of an adapter before it makes its queues: capabilities, numbers of verbs' objects, a domain that is
// another's, and a target of dynamic connections.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#define CHECK(is) \
    if (!(is)) { \
        printf("line %d: %s, errno %d\n", __LINE__, #is, errno); \
        exit(1); \
    }

// The bits of an answer from this one on.
static unsigned bits(const uint8_t *answer, unsigned at, unsigned count)
{
    unsigned value = 0;
    for (unsigned bit = at; bit < at + count; bit++)
        value = value << 1 | (answer[bit / 8] >> (7 - bit % 8) & 1);
    return value;
}

static void ask(struct ibv_context *context)
{
    uint8_t command[16] = {0x01, 0x00, [7] = 3 << 1 | 1}, answer[16 + 4096] = {0};
    CHECK(mlx5dv_devx_general_cmd(context, command, sizeof command, answer, sizeof answer) == 0);
    // Compare and swap, fetch and add, both with masks, of 4 and 8 bytes.
    CHECK(bits(answer + 16, 0x90, 16) == 0xf && bits(answer + 16, 0xb0, 16) == 0xc && bits(answer + 16, 0xd0, 16) == 0xc);
    command[7] = 1;
    CHECK(mlx5dv_devx_general_cmd(context, command, sizeof command, answer, sizeof answer) == 0);
    CHECK(bits(answer + 16, 0x1fc, 4) == 1 && bits(answer + 16, 0x26b, 5) == 9);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context);
    ask(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_parent_domain_init_attr whose = {.pd = pd};
    struct ibv_pd *child = ibv_alloc_parent_domain(context, &whose);
    CHECK(child && child != pd && child->handle == pd->handle && ibv_dealloc_pd(pd) == EBUSY);

    struct ibv_srq_init_attr receives = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(child, &receives), *second = ibv_create_srq(child, &receives);
    struct ibv_cq *cq = ibv_create_cq(context, 15, NULL, NULL, 0);
    struct mlx5dv_srq numbered = {.comp_mask = MLX5DV_SRQ_MASK_SRQN}, other = numbered;
    struct mlx5dv_cq queue;
    struct mlx5dv_obj both = {.srq = {srq, &numbered}, .cq = {cq, &queue}}, one = {.srq = {second, &other}};
    CHECK(mlx5dv_init_obj(&both, MLX5DV_OBJ_SRQ | MLX5DV_OBJ_CQ) == 0 && mlx5dv_init_obj(&one, MLX5DV_OBJ_SRQ) == 0);
    CHECK(numbered.srqn != 0 && other.srqn != 0 && numbered.srqn != other.srqn);
    CHECK(queue.cqn != 0 && queue.cqe_cnt == 16 && queue.cqe_size == 64 && queue.buf && queue.dbrec);

    struct ibv_qp_init_attr_ex wanted = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = child};
    struct mlx5dv_qp_init_attr kind = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 5}};
    struct ibv_qp *target = mlx5dv_create_qp(context, &wanted, &kind);
    CHECK(target && target->qp_num != 0);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(target, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .min_rnr_timer = 12};
    to.ah_attr.is_global = to.ah_attr.port_num = 1;
    CHECK(ibv_query_gid(context, 1, 0, &to.ah_attr.grh.dgid) == 0);
    CHECK(ibv_modify_qp(target, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER) == 0);
    kind.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
    errno = 0;
    CHECK(!mlx5dv_create_qp(context, &wanted, &kind) && errno == EOPNOTSUPP);

    CHECK(ibv_destroy_qp(target) == 0 && ibv_destroy_srq(srq) == 0 && ibv_destroy_srq(second) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(child) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    ibv_free_device_list(devices);
    puts("right");
    return 0;
}
