//! Settings of a function for its next launch in the manner of CUDA 2.

use outboard_api::CUresult;

use super::PARAM_BYTES_MAX;
use crate::done::Done;

/// Settings of a function for its next launch.
#[derive(Clone, Default)]
pub(crate) struct Prepared {
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    params: Vec<u8>,
    pub(crate) param_bytes: usize,
}

impl Prepared {
    /// Writes a parameter at this offset.
    pub(crate) fn set(&mut self, offset: i32, bytes: &[u8]) -> Done {
        let start = usize::try_from(offset).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let end = start
            .checked_add(bytes.len())
            .filter(|end| *end <= PARAM_BYTES_MAX)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if self.params.len() < end {
            self.params.resize(end, 0);
        }
        self.params[start..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the parameter buffer with the length that `cuParamSetSize` set.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.params.clone();
        buffer.resize(self.param_bytes, 0);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_land_at_their_offsets() {
        let mut prepared = Prepared::default();
        prepared.set(8, &7u32.to_le_bytes()).expect("inside");
        prepared.set(0, &1.0f32.to_le_bytes()).expect("inside");
        prepared.param_bytes = 16;
        assert_eq!(
            prepared.buffer(),
            [0, 0, 0x80, 0x3f, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
        );
        assert!(prepared.set(-1, &[0]).is_err());
        assert!(prepared.set(PARAM_BYTES_MAX as i32 - 3, &[0; 4]).is_err());
    }
}
