/* Writes send queue entries by the inline helpers of rdma-core's header, and reads completions by
 * its structs. A line in, a line out:
 *   E opcode index qpn flags imm raddr rkey length lkey laddr first second inline(hex or -)
 *   C 128 digits
 */
#include <endian.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/mlx5dv.h>

static void entry(const char *line)
{
    unsigned opcode, index, qpn, flags, imm, rkey, length, lkey;
    uint64_t raddr, laddr, first, second;
    char inlined[1024];
    if (sscanf(line, "%u %u %u %u %u %" SCNu64 " %u %u %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %1023s", &opcode, &index,
               &qpn, &flags, &imm, &raddr, &rkey, &length, &lkey, &laddr, &first, &second, inlined) != 13)
        return;
    uint8_t bytes[1024] __attribute__((aligned(64))) = {0};
    uint8_t *at = bytes + sizeof(struct mlx5_wqe_ctrl_seg);
    if (opcode != MLX5_OPCODE_NOP && opcode != MLX5_OPCODE_SEND && opcode != MLX5_OPCODE_SEND_IMM) {
        struct mlx5_wqe_raddr_seg *remote = (void *)at;
        remote->raddr = htobe64(raddr);
        remote->rkey = htobe32(rkey);
        at += sizeof *remote;
    }
    if (opcode == MLX5_OPCODE_ATOMIC_FA || opcode == MLX5_OPCODE_ATOMIC_CS) {
        struct mlx5_wqe_atomic_seg *atomic = (void *)at;
        atomic->swap_add = htobe64(first);
        atomic->compare = htobe64(second);
        at += sizeof *atomic;
    }
    if (strcmp(inlined, "-") != 0) {
        struct mlx5_wqe_inl_data_seg *data = (void *)at;
        unsigned count = strlen(inlined) / 2;
        data->byte_count = htobe32(count | MLX5_INLINE_SEG);
        for (unsigned i = 0; i < count; ++i) sscanf(inlined + 2 * i, "%2hhx", at + sizeof *data + i);
        at += (sizeof *data + count + 15) / 16 * 16;
    } else if (opcode != MLX5_OPCODE_NOP) {
        mlx5dv_set_data_seg((void *)at, length, lkey, laddr);
        at += sizeof(struct mlx5_wqe_data_seg);
    }
    mlx5dv_set_ctrl_seg((void *)bytes, index, opcode, 0, qpn, flags, (at - bytes) / 16, 0, htobe32(imm));
    for (uint8_t *byte = bytes; byte < at; ++byte) printf("%02x", *byte);
    printf("\n");
}

static void completion(const char *digits)
{
    union {
        struct mlx5_cqe64 cqe;
        uint8_t bytes[64];
    } of;
    for (unsigned i = 0; i < 64; ++i) sscanf(digits + 2 * i, "%2hhx", of.bytes + i);
    const struct mlx5_err_cqe *error = (const void *)of.bytes;
    unsigned opcode = mlx5dv_get_cqe_opcode(&of.cqe);
    int failed = opcode == MLX5_CQE_REQ_ERR || opcode == MLX5_CQE_RESP_ERR;
    printf("%u %u %u %u %u %u %u %u\n", opcode, mlx5dv_get_cqe_owner(&of.cqe), be32toh(of.cqe.sop_drop_qpn) & 0xffffff,
           be32toh(of.cqe.sop_drop_qpn) >> 24, be16toh(of.cqe.wqe_counter), be32toh(of.cqe.byte_cnt),
           be32toh(of.cqe.imm_inval_pkey), failed ? error->syndrome : 0u);
}

int main(void)
{
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'E') entry(line + 2);
        else completion(line + 2);
        fflush(stdout);
    }
    return 0;
}
