//! Parameter records of graph nodes: layouts that the declaration leaves opaque, and the memory
//! that they name.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUarray, CUcontext,
        CUgraph,
    },
};

/// `CUgraphNodeParams`: a type, and the parameters of that type.
#[repr(C)]
pub(super) struct NodeParams {
    pub(super) kind: u32,
    pub(super) reserved0: [i32; 3],
    pub(super) params: [u64; 29],
    pub(super) reserved2: i64,
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[repr(C)]
pub(super) struct CopyNodeParams {
    pub(super) flags: i32,
    pub(super) reserved: i32,
    pub(super) context: CUcontext,
    pub(super) copy: CUDA_MEMCPY3D,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`
#[repr(C)]
pub(super) struct ConditionalParams {
    pub(super) handle: u64,
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) bodies: *const CUgraph,
    pub(super) context: CUcontext,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`
#[repr(C)]
pub(super) struct MemsetNodeParams {
    pub(super) memset: CUDA_MEMSET_NODE_PARAMS,
    pub(super) context: CUcontext,
}

const _: () = {
    assert!(size_of::<NodeParams>() == 256);
    assert!(std::mem::offset_of!(NodeParams, params) == 16);
    assert!(size_of::<CopyNodeParams>() == 216);
    assert!(size_of::<MemsetNodeParams>() == 48);
    assert!(size_of::<ConditionalParams>() == 32);
};

/// Length of `CUDA_KERNEL_NODE_PARAMS_v1`: the newer record without its last two fields.
pub(super) const KERNEL_V1_BYTES: usize = std::mem::offset_of!(CUDA_KERNEL_NODE_PARAMS, kern);

/// # Safety
/// `params` is NULL or a `CUDA_KERNEL_NODE_PARAMS_v1`.
pub(super) unsafe fn widened(params: *const c_void) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    if params.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut wide = CUDA_KERNEL_NODE_PARAMS::EMPTY;
    // SAFETY: copies the fields that both records have from the caller's record to our own.
    unsafe {
        std::ptr::copy_nonoverlapping(
            params.cast::<u8>(),
            (&raw mut wide).cast::<u8>(),
            KERNEL_V1_BYTES,
        )
    };
    Ok(wide)
}

/// Returns the bytes from the first one that a memset writes to the last.
pub(super) fn memset_bytes(memset: &CUDA_MEMSET_NODE_PARAMS) -> Option<u64> {
    let (width, height, pitch) = (
        memset.width as u64,
        memset.height as u64,
        memset.pitch as u64,
    );
    if !matches!(memset.element_size, 1 | 2 | 4) || width == 0 || height == 0 {
        return None;
    }
    let row = width.checked_mul(u64::from(memset.element_size))?;
    if height > 1 && pitch < row {
        return None;
    }
    pitch.checked_mul(height - 1)?.checked_add(row)
}

/// One side of `CUDA_MEMCPY3D`.
pub(super) struct Side {
    pub(super) kind: u32,
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) array: CUarray,
    pub(super) pitch: u64,
    pub(super) height: u64,
    /// Position of the first element: bytes, rows, slices.
    pub(super) at: [u64; 3],
}

impl Side {
    /// Returns pitch, height, offset of the first byte, and length up to the last byte. A copy of
    /// one row needs no pitch, one of a single slice no height.
    pub(super) fn layout(&self, [width, height, depth]: [u64; 3]) -> Option<(u64, u64, u64, u64)> {
        let [x, y, z] = self.at;
        let (row, rows) = (x.checked_add(width)?, y.checked_add(height)?);
        let pitch = if self.pitch == 0 { row } else { self.pitch };
        let slice_rows = if self.height == 0 { rows } else { self.height };
        if height > 1 && pitch < row || depth > 1 && slice_rows < rows {
            return None;
        }
        let slice = pitch.checked_mul(slice_rows)?;
        let first = z
            .checked_mul(slice)?
            .checked_add(y.checked_mul(pitch)?)?
            .checked_add(x)?;
        let bytes = (depth - 1)
            .checked_mul(slice)?
            .checked_add((height - 1).checked_mul(pitch)?)?
            .checked_add(width)?;
        Some((pitch, slice_rows, first, bytes))
    }
}

#[cfg(test)]
mod tests {
    use outboard_api::cuda::{CUfunction, CUkernel};

    use super::*;

    fn memset(pitch: usize, element_size: u32, width: usize, height: usize) -> Option<u64> {
        memset_bytes(&CUDA_MEMSET_NODE_PARAMS {
            dst: 0,
            pitch,
            value: 0,
            element_size,
            width,
            height,
        })
    }

    #[test]
    fn a_memset_reaches_from_its_first_to_its_last_element() {
        assert_eq!(memset(0, 4, 10, 1), Some(40));
        assert_eq!(memset(64, 2, 10, 3), Some(2 * 64 + 20));
        assert_eq!(memset(19, 2, 10, 3), None, "rows overlap");
        assert_eq!(memset(0, 3, 10, 1), None, "no such element");
        assert_eq!(memset(0, 4, 0, 1), None);
        assert_eq!(
            memset(usize::MAX, 4, 10, 3),
            None,
            "past the end of all addresses"
        );
    }

    #[test]
    fn a_copy_reaches_from_its_first_to_its_last_byte() {
        let side = |pitch, height, at| Side {
            kind: 2,
            host: 0,
            device: 0,
            array: CUarray::NULL,
            pitch,
            height,
            at,
        };
        assert_eq!(
            side(0, 0, [0; 3]).layout([100, 1, 1]),
            Some((100, 1, 0, 100))
        );
        assert_eq!(
            side(128, 4, [8, 1, 2]).layout([100, 3, 2]),
            Some((128, 4, 2 * 512 + 128 + 8, 512 + 2 * 128 + 100))
        );
        assert_eq!(
            side(64, 4, [0; 3]).layout([100, 3, 1]),
            None,
            "rows overlap"
        );
        assert_eq!(
            side(128, 2, [0; 3]).layout([100, 3, 2]),
            None,
            "slices overlap"
        );
        assert_eq!(
            side(u64::MAX, 4, [0; 3]).layout([100, 3, 2]),
            None,
            "past the end of all addresses"
        );
    }

    #[test]
    fn an_old_kernel_record_is_a_new_one_without_its_last_fields() {
        let old = CUDA_KERNEL_NODE_PARAMS {
            func: CUfunction(5),
            grid_dim_z: 3,
            shared_mem_bytes: 9,
            kern: CUkernel(7),
            ctx: CUcontext(8),
            ..CUDA_KERNEL_NODE_PARAMS::EMPTY
        };
        // SAFETY: a record at least as long as the old one.
        let wide = unsafe { widened((&raw const old).cast()) }.expect("a record");
        assert_eq!(
            (wide.func, wide.grid_dim_z, wide.shared_mem_bytes),
            (CUfunction(5), 3, 9)
        );
        assert_eq!((wide.kern, wide.ctx), (CUkernel::NULL, CUcontext::NULL));
        // SAFETY: NULL is refused.
        assert!(unsafe { widened(std::ptr::null()) }.is_err());
    }
}
