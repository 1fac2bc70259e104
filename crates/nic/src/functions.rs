//! The functions of the libraries, declared once: `build.rs` makes the libraries and their symbol
//! versions of them, and docs/net.md has the table that `tests/tools.rs` makes of them.
//!
//! They are those that GPUNetIO, NVSHMEM's IBGDA and NCCL's GIN call (names and versions as their
//! packages ask for them), those of rdma-core's tools and perftest, and what UCX's verbs transport
//! needs beside them.

/// Result of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `outboard_nic_NAME` of this crate answers.
    Served,
    /// A null pointer, and EOPNOTSUPP in `errno`; standard error names the function.
    NoPointer,
    /// EOPNOTSUPP; standard error names the function.
    NoStatus,
}

/// A function, and the symbol version by which programs ask for it.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub name: &'static str,
    pub version: &'static str,
    pub answer: Answer,
}

/// A library that programs load in place of rdma-core's.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub name: &'static str,
    pub functions: &'static [Function],
}

const fn of(name: &'static str, version: &'static str, answer: Answer) -> Function {
    Function {
        name,
        version,
        answer,
    }
}

use Answer::{NoPointer, NoStatus, Served};

#[rustfmt::skip]
const VERBS: &[Function] = &[
    of("ibv_read_sysfs_file", "IBVERBS_1.0", Served),
    of("ibv_create_comp_channel", "IBVERBS_1.0", Served),
    of("ibv_destroy_comp_channel", "IBVERBS_1.0", Served),
    of("ibv_get_sysfs_path", "IBVERBS_1.0", NoPointer),
    of("ibv_copy_path_rec_from_kern", "IBVERBS_1.0", NoStatus),
    of("ibv_copy_qp_attr_from_kern", "IBVERBS_1.0", NoStatus),
    of("ibv_get_device_list", "IBVERBS_1.1", Served),
    of("ibv_free_device_list", "IBVERBS_1.1", Served),
    of("ibv_get_device_name", "IBVERBS_1.1", Served),
    of("ibv_get_device_guid", "IBVERBS_1.1", Served),
    of("ibv_open_device", "IBVERBS_1.1", Served),
    of("ibv_close_device", "IBVERBS_1.1", Served),
    of("ibv_get_async_event", "IBVERBS_1.1", Served),
    of("ibv_ack_async_event", "IBVERBS_1.1", Served),
    of("ibv_event_type_str", "IBVERBS_1.1", Served),
    of("ibv_node_type_str", "IBVERBS_1.1", Served),
    of("ibv_port_state_str", "IBVERBS_1.1", Served),
    of("ibv_query_device", "IBVERBS_1.1", Served),
    of("ibv_query_port", "IBVERBS_1.1", Served),
    of("ibv_query_gid", "IBVERBS_1.1", Served),
    of("ibv_query_pkey", "IBVERBS_1.1", Served),
    of("ibv_alloc_pd", "IBVERBS_1.1", Served),
    of("ibv_dealloc_pd", "IBVERBS_1.1", Served),
    of("ibv_reg_mr", "IBVERBS_1.1", Served),
    of("ibv_dereg_mr", "IBVERBS_1.1", Served),
    of("ibv_rereg_mr", "IBVERBS_1.1", NoStatus),
    of("ibv_fork_init", "IBVERBS_1.1", Served),
    of("ibv_dontfork_range", "IBVERBS_1.1", Served),
    of("ibv_dofork_range", "IBVERBS_1.1", Served),
    of("ibv_create_cq", "IBVERBS_1.1", Served),
    of("ibv_resize_cq", "IBVERBS_1.1", NoStatus),
    of("ibv_destroy_cq", "IBVERBS_1.1", Served),
    of("ibv_get_cq_event", "IBVERBS_1.1", Served),
    of("ibv_ack_cq_events", "IBVERBS_1.1", Served),
    of("ibv_create_qp", "IBVERBS_1.1", Served),
    of("ibv_destroy_qp", "IBVERBS_1.1", Served),
    of("ibv_modify_qp", "IBVERBS_1.1", Served),
    of("ibv_query_qp", "IBVERBS_1.1", Served),
    of("ibv_wc_status_str", "IBVERBS_1.1", Served),
    of("ibv_create_ah", "IBVERBS_1.1", Served),
    of("ibv_init_ah_from_wc", "IBVERBS_1.1", NoStatus),
    of("ibv_create_ah_from_wc", "IBVERBS_1.1", NoPointer),
    of("ibv_destroy_ah", "IBVERBS_1.1", Served),
    of("ibv_copy_ah_attr_from_kern", "IBVERBS_1.1", NoStatus),
    of("ibv_create_srq", "IBVERBS_1.1", Served),
    of("ibv_modify_srq", "IBVERBS_1.1", NoStatus),
    of("ibv_query_srq", "IBVERBS_1.1", NoStatus),
    of("ibv_destroy_srq", "IBVERBS_1.1", Served),
    of("ibv_attach_mcast", "IBVERBS_1.1", NoStatus),
    of("ibv_detach_mcast", "IBVERBS_1.1", NoStatus),
    of("ibv_get_pkey_index", "IBVERBS_1.5", NoStatus),
    of("ibv_qp_to_qp_ex", "IBVERBS_1.6", Served),
    of("ibv_reg_mr_iova", "IBVERBS_1.7", Served),
    of("ibv_reg_mr_iova2", "IBVERBS_1.8", Served),
    of("ibv_get_device_index", "IBVERBS_1.9", NoStatus),
    of("ibv_query_ece", "IBVERBS_1.10", NoStatus),
    of("ibv_set_ece", "IBVERBS_1.10", NoStatus),
    of("_ibv_query_gid_ex", "IBVERBS_1.11", Served),
    of("ibv_reg_dmabuf_mr", "IBVERBS_1.12", Served),
    of("ibv_is_fork_initialized", "IBVERBS_1.13", Served),
    of("ibv_query_gid_type", "IBVERBS_PRIVATE_34", Served),
];

#[rustfmt::skip]
const MLX5: &[Function] = &[
    of("mlx5dv_query_device", "MLX5_1.0", NoStatus),
    of("mlx5dv_init_obj", "MLX5_1.2", Served),
    of("mlx5dv_create_qp", "MLX5_1.3", Served),
    of("mlx5dv_devx_obj_create", "MLX5_1.7", Served),
    of("mlx5dv_devx_obj_query", "MLX5_1.7", Served),
    of("mlx5dv_devx_obj_modify", "MLX5_1.7", Served),
    of("mlx5dv_devx_obj_destroy", "MLX5_1.7", Served),
    of("mlx5dv_devx_general_cmd", "MLX5_1.7", Served),
    of("mlx5dv_devx_query_eqn", "MLX5_1.7", Served),
    of("mlx5dv_devx_alloc_uar", "MLX5_1.7", Served),
    of("mlx5dv_devx_free_uar", "MLX5_1.7", Served),
    of("mlx5dv_devx_umem_reg", "MLX5_1.7", Served),
    of("mlx5dv_devx_umem_dereg", "MLX5_1.7", Served),
    of("mlx5dv_open_device", "MLX5_1.7", NoPointer),
    of("mlx5dv_is_supported", "MLX5_1.8", Served),
    of("mlx5dv_create_mkey", "MLX5_1.10", NoPointer),
    of("mlx5dv_destroy_mkey", "MLX5_1.10", NoStatus),
    of("mlx5dv_qp_ex_from_ibv_qp_ex", "MLX5_1.10", NoPointer),
    of("mlx5dv_devx_umem_reg_ex", "MLX5_1.19", NoPointer),
    of("mlx5dv_crypto_login", "MLX5_1.21", NoStatus),
    of("mlx5dv_dek_create", "MLX5_1.21", NoPointer),
    of("mlx5dv_dek_destroy", "MLX5_1.21", NoStatus),
    of("mlx5dv_reg_dmabuf_mr", "MLX5_1.25", NoPointer),
    of("mlx5dv_get_data_direct_sysfs_path", "MLX5_1.25", NoStatus),
];

/// perftest is linked with it, for adapters of another kind.
#[rustfmt::skip]
const EFA: &[Function] = &[
    of("efadv_query_device", "EFA_1.1", NoStatus),
    of("efadv_create_qp_ex", "EFA_1.1", NoPointer),
];

pub const LIBRARIES: [Library; 3] = [
    Library {
        name: "libibverbs.so.1",
        functions: VERBS,
    },
    Library {
        name: "libmlx5.so.1",
        functions: MLX5,
    },
    Library {
        name: "libefa.so.1",
        functions: EFA,
    },
];
