//! Attributes of launch configurations.

use outboard_api::{
    CUresult,
    cuda::{CUlaunchAttribute, CUlaunchConfig},
};

/// Most attributes of a configuration.
const ATTRIBUTES_MAX: u32 = 64;

/// Returns the attributes of a configuration as bytes.
///
/// # Safety
/// `config.attrs` must be NULL or have `num_attrs` entries.
pub(crate) unsafe fn attribute_bytes(config: &CUlaunchConfig) -> Result<&[u8], CUresult> {
    if config.num_attrs == 0 {
        return Ok(&[]);
    }
    if config.attrs.is_null() || config.num_attrs > ATTRIBUTES_MAX {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so it has that many entries by this function's contract.
    Ok(unsafe {
        std::slice::from_raw_parts(
            config.attrs.cast::<u8>(),
            config.num_attrs as usize * size_of::<CUlaunchAttribute>(),
        )
    })
}
