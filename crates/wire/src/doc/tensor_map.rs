//! The arguments of `cuTensorMapEncode*`, and the layouts of other records that travel as bytes.

use serde::{Deserialize, Serialize};

/// `tensor_map_encode`'s `kind`.
pub const TENSOR_MAP_TILED: u32 = 0;
pub const TENSOR_MAP_IM2COL: u32 = 1;
pub const TENSOR_MAP_IM2COL_WIDE: u32 = 2;

/// The greatest rank of a tensor map (CUDA driver API, "Tensor Map Object Management").
pub const TENSOR_MAP_RANK_MAX: usize = 5;

/// Arguments of the three encoders; fields that a kind does not have are empty or 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TensorMapArguments {
    pub data_type: u32,
    pub global_address: u64,
    /// Elements in each dimension, innermost first; its length is the rank.
    pub global_dim: Vec<u64>,
    /// Bytes; one less than the rank.
    pub global_strides_bytes: Vec<u64>,
    /// Tiled: as many as the rank.
    pub box_dim: Vec<u32>,
    /// Im2col: rank - 2 corners; im2col wide: one.
    pub pixel_box_lower: Vec<i32>,
    pub pixel_box_upper: Vec<i32>,
    pub channels_per_pixel: u32,
    pub pixels_per_column: u32,
    /// As many as the rank.
    pub element_strides: Vec<u32>,
    pub interleave: u32,
    /// Im2col wide: `CUtensorMapIm2ColWideMode`.
    pub wide_mode: u32,
    pub swizzle: u32,
    pub l2_promotion: u32,
    pub oob_fill: u32,
}

/// `CUDA_RESOURCE_DESC` in `texture_create` and `surface_create`: the record of `cuda.h`, in which
/// the minted id of the array or mipmapped array stands in place of the eight bytes of the handle.
pub const RESOURCE_DESC_BYTES: usize = 144;
pub const RESOURCE_DESC_HANDLE_OFFSET: usize = 8;
/// `CUDA_TEXTURE_DESC`.
pub const TEXTURE_DESC_BYTES: usize = 104;
/// `CUDA_RESOURCE_VIEW_DESC`; an empty field stands for a null pointer.
pub const RESOURCE_VIEW_DESC_BYTES: usize = 112;

/// `CUlaunchAttribute`: id at 0, value at 8. Event handles inside values are minted ids.
pub const LAUNCH_ATTRIBUTE_BYTES: usize = 72;
/// Start of `occupancy`'s `config`: grid x y z, block x y z, shared bytes, each a `u32`; launch
/// attributes follow.
pub const OCCUPANCY_CONFIG_BYTES: usize = 28;

/// `occupancy`'s `query`.
pub const OCCUPANCY_BLOCKS_PER_MULTIPROCESSOR: u32 = 0;
/// For `block_size` threads per block; `shared_bytes` holds the number of blocks.
pub const OCCUPANCY_SHARED_BYTES_PER_BLOCK: u32 = 1;
pub const OCCUPANCY_ACTIVE_CLUSTERS: u32 = 2;
pub const OCCUPANCY_CLUSTER_SIZE_MAX: u32 = 3;
