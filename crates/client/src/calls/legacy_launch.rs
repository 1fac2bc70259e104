//! Launches in the manner of CUDA 2: the program first sets block size and arguments on the
//! function, one by one.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUfunction, CUstream},
};

use super::{
    Done, cuLaunchKernel,
    launch::{EXTRA_BUFFER_POINTER, EXTRA_BUFFER_SIZE, PARAM_BYTES_MAX},
};
use crate::{guard, state::driver};

/// Settings of a function for its next launch.
#[derive(Clone, Default)]
pub(crate) struct Prepared {
    block: [u32; 3],
    shared_bytes: u32,
    params: Vec<u8>,
    param_bytes: usize,
}

fn prepare(function: CUfunction, change: impl FnOnce(&mut Prepared) -> Done) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    let mut prepared = driver.prepared_launches.lock();
    change(prepared.entry(kernel.wire).or_default())
}

impl Prepared {
    fn set(&mut self, offset: i32, bytes: &[u8]) -> Done {
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
    fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.params.clone();
        buffer.resize(self.param_bytes, 0);
        buffer
    }
}

pub(crate) unsafe fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) -> Done {
    let mut block = [0; 3];
    for (slot, size) in block.iter_mut().zip([x, y, z]) {
        *slot = u32::try_from(size)
            .ok()
            .filter(|s| *s > 0)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    }
    prepare(function, |prepared| {
        prepared.block = block;
        Ok(())
    })
}

pub(crate) unsafe fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) -> Done {
    prepare(function, |prepared| {
        prepared.shared_bytes = bytes;
        Ok(())
    })
}

pub(crate) unsafe fn cuParamSetSize(function: CUfunction, bytes: u32) -> Done {
    if bytes as usize > PARAM_BYTES_MAX {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    prepare(function, |prepared| {
        prepared.param_bytes = bytes as usize;
        Ok(())
    })
}

pub(crate) unsafe fn cuParamSeti(function: CUfunction, offset: i32, value: u32) -> Done {
    prepare(function, |prepared| {
        prepared.set(offset, &value.to_le_bytes())
    })
}

pub(crate) unsafe fn cuParamSetf(function: CUfunction, offset: i32, value: f32) -> Done {
    prepare(function, |prepared| {
        prepared.set(offset, &value.to_le_bytes())
    })
}

pub(crate) unsafe fn cuParamSetv(
    function: CUfunction,
    offset: i32,
    value: *mut c_void,
    bytes: u32,
) -> Done {
    if value.is_null() || bytes as usize > PARAM_BYTES_MAX {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's value of this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes as usize) };
    prepare(function, |prepared| prepared.set(offset, bytes))
}

fn launch(function: CUfunction, width: i32, height: i32, stream: CUstream) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    let prepared = driver
        .prepared_launches
        .lock()
        .get(&kernel.wire)
        .cloned()
        .unwrap_or_default();
    let (Ok(width), Ok(height)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let key = std::ptr::without_provenance_mut;
    let (mut buffer, mut len) = (prepared.buffer(), prepared.param_bytes);
    let mut extra: [*mut c_void; 5] = [
        key(EXTRA_BUFFER_POINTER),
        buffer.as_mut_ptr().cast(),
        key(EXTRA_BUFFER_SIZE),
        (&raw mut len).cast(),
        std::ptr::null_mut(),
    ];
    let [x, y, z] = prepared.block;
    // SAFETY: the array describes the buffer above.
    unsafe {
        cuLaunchKernel(
            function,
            width,
            height,
            1,
            x,
            y,
            z,
            prepared.shared_bytes,
            stream,
            std::ptr::null_mut(),
            extra.as_mut_ptr(),
        )
    }
}

pub(crate) unsafe fn cuLaunch(function: CUfunction) -> Done {
    launch(function, 1, 1, guard::default_stream())
}

pub(crate) unsafe fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) -> Done {
    launch(function, width, height, guard::default_stream())
}

pub(crate) unsafe fn cuLaunchGridAsync(
    function: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> Done {
    launch(function, width, height, stream)
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
