//! Launches in the manner of CUDA 2: the program first sets block size and arguments on the
//! function, one by one.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUfunction, CUstream},
};

use super::{
    Done,
    arguments::{EXTRA_BUFFER_POINTER, EXTRA_BUFFER_SIZE},
    cuLaunchKernel,
};
use crate::{
    observe::guard,
    state::{PARAM_BYTES_MAX, Prepared, driver},
};

fn prepare(function: CUfunction, change: impl FnOnce(&mut Prepared) -> Done) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    let mut prepared = driver.prepared_launches.lock();
    change(prepared.entry(kernel.wire).or_default())
}

pub(crate) fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) -> Done {
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

pub(crate) fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) -> Done {
    prepare(function, |prepared| {
        prepared.shared_bytes = bytes;
        Ok(())
    })
}

pub(crate) fn cuParamSetSize(function: CUfunction, bytes: u32) -> Done {
    if bytes as usize > PARAM_BYTES_MAX {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    prepare(function, |prepared| {
        prepared.param_bytes = bytes as usize;
        Ok(())
    })
}

pub(crate) fn cuParamSeti(function: CUfunction, offset: i32, value: u32) -> Done {
    prepare(function, |prepared| {
        prepared.set(offset, &value.to_le_bytes())
    })
}

pub(crate) fn cuParamSetf(function: CUfunction, offset: i32, value: f32) -> Done {
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
    // SAFETY: not NULL, and of `bytes` bytes: the driver API asks it of its callers.
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

pub(crate) fn cuLaunch(function: CUfunction) -> Done {
    launch(function, 1, 1, guard::default_stream())
}

pub(crate) fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) -> Done {
    launch(function, width, height, guard::default_stream())
}

pub(crate) fn cuLaunchGridAsync(
    function: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> Done {
    launch(function, width, height, stream)
}
