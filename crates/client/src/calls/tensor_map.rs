//! Tensor maps. The server's driver encodes them; the client remembers the results.

use std::ffi::c_void;

use outboard_api::{CUresult, cuda::CUtensorMap};
use outboard_wire::{
    doc::{
        self, TENSOR_MAP_IM2COL, TENSOR_MAP_IM2COL_WIDE, TENSOR_MAP_RANK_MAX, TENSOR_MAP_TILED,
        TensorMapArguments,
    },
    messages,
};

use super::{Done, InOut, Out};
use crate::state::{Driver, driver};

const MAP_BYTES: usize = size_of::<CUtensorMap>();
/// The number for `tensor_map_replace_address` among the encoders, in the table of results.
const REPLACE_ADDRESS: u32 = u32::MAX;

fn map_of(bytes: &[u8]) -> Option<CUtensorMap> {
    let bytes: &[u8; MAP_BYTES] = bytes.try_into().ok()?;
    let mut opaque = [0; 16];
    for (word, bytes) in opaque.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(CUtensorMap { opaque })
}

impl Driver {
    fn encode_tensor_map(
        &self,
        kind: u32,
        arguments: &TensorMapArguments,
    ) -> Result<CUtensorMap, CUresult> {
        let arguments = doc::to_bytes(arguments).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.tensor_map((kind, arguments), |driver, arguments| {
            driver.call(&messages::TensorMapEncode { kind, arguments }, |reply| {
                map_of(&reply.map)
            })
        })
    }

    fn replace_tensor_map_address(
        &self,
        map: &CUtensorMap,
        address: u64,
    ) -> Result<CUtensorMap, CUresult> {
        let bytes: Vec<u8> = map
            .opaque
            .iter()
            .chain([&address])
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        self.tensor_map((REPLACE_ADDRESS, bytes), |driver, bytes| {
            let message = messages::TensorMapReplaceAddress {
                address,
                map: &bytes[..MAP_BYTES],
            };
            driver.call(&message, |reply| map_of(&reply.replaced))
        })
    }

    /// Returns a known result, or asks for it.
    fn tensor_map(
        &self,
        question: (u32, Vec<u8>),
        ask: impl FnOnce(&Driver, &[u8]) -> Result<Option<CUtensorMap>, CUresult>,
    ) -> Result<CUtensorMap, CUresult> {
        if let Some(known) = self.tensor_maps.lock().get(&question) {
            return Ok(known);
        }
        let map = ask(self, &question.1)?.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        self.tensor_maps.lock().insert(question, &map);
        Ok(map)
    }
}

/// # Safety
/// `values` must be NULL or have `count` entries.
unsafe fn list<T: Copy>(values: *const T, count: usize) -> Result<Vec<T>, CUresult> {
    if values.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so it has `count` entries by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(values, count) }.to_vec())
}

/// Checks a rank, which gives the lengths of the lists.
fn check_rank(rank: u32, least: usize) -> Result<usize, CUresult> {
    let rank = rank as usize;
    if (least..=TENSOR_MAP_RANK_MAX).contains(&rank) {
        Ok(rank)
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

pub(crate) unsafe fn cuTensorMapEncodeTiled(
    map: Out<'_, CUtensorMap>,
    data_type: u32,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    box_dim: *const u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> Done {
    let driver = driver()?;
    map.check()?;
    let rank = check_rank(rank, 1)?;
    // SAFETY: lists of the lengths that the rank requires: the driver API asks it of its callers.
    let arguments = unsafe {
        TensorMapArguments {
            data_type,
            global_address: address as u64,
            global_dim: list(dims, rank)?,
            // Not NULL for a tensor of rank 1 either, which has none.
            global_strides_bytes: list(strides, rank - 1)?,
            box_dim: list(box_dim, rank)?,
            element_strides: list(element_strides, rank)?,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
            ..TensorMapArguments::default()
        }
    };
    map.put(driver.encode_tensor_map(TENSOR_MAP_TILED, &arguments)?)
}

pub(crate) unsafe fn cuTensorMapEncodeIm2col(
    map: Out<'_, CUtensorMap>,
    data_type: u32,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    lower: *const i32,
    upper: *const i32,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> Done {
    let driver = driver()?;
    map.check()?;
    let rank = check_rank(rank, 3)?;
    // SAFETY: lists of the lengths that the rank requires: the driver API asks it of its callers.
    let arguments = unsafe {
        TensorMapArguments {
            data_type,
            global_address: address as u64,
            global_dim: list(dims, rank)?,
            global_strides_bytes: list(strides, rank - 1)?,
            pixel_box_lower: list(lower, rank - 2)?,
            pixel_box_upper: list(upper, rank - 2)?,
            channels_per_pixel,
            pixels_per_column,
            element_strides: list(element_strides, rank)?,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
            ..TensorMapArguments::default()
        }
    };
    map.put(driver.encode_tensor_map(TENSOR_MAP_IM2COL, &arguments)?)
}

pub(crate) unsafe fn cuTensorMapEncodeIm2colWide(
    map: Out<'_, CUtensorMap>,
    data_type: u32,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    lower: i32,
    upper: i32,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: *const u32,
    interleave: u32,
    mode: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> Done {
    let driver = driver()?;
    map.check()?;
    let rank = check_rank(rank, 3)?;
    // SAFETY: lists of the lengths that the rank requires: the driver API asks it of its callers.
    let arguments = unsafe {
        TensorMapArguments {
            data_type,
            global_address: address as u64,
            global_dim: list(dims, rank)?,
            global_strides_bytes: list(strides, rank - 1)?,
            pixel_box_lower: vec![lower],
            pixel_box_upper: vec![upper],
            channels_per_pixel,
            pixels_per_column,
            element_strides: list(element_strides, rank)?,
            interleave,
            wide_mode: mode,
            swizzle,
            l2_promotion,
            oob_fill,
            ..TensorMapArguments::default()
        }
    };
    map.put(driver.encode_tensor_map(TENSOR_MAP_IM2COL_WIDE, &arguments)?)
}

/// Asks the server: only the driver knows the position of the address in a map.
pub(crate) fn cuTensorMapReplaceAddress(map: InOut<'_, CUtensorMap>, address: *mut c_void) -> Done {
    let driver = driver()?;
    let before = map.get()?;
    map.put(driver.replace_tensor_map_address(&before, address as u64)?)
}
