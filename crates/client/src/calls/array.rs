//! Arrays and mipmapped arrays: what the client learns when they are made, so that it refuses a
//! copy beyond one at the call.

use outboard_api::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray,
};

use super::In;
use crate::state::{Driver, driver};

/// Passes what a call has given and got to the state of arrays, if all of it is there.
fn learn<T, U>((one, other): (In<'_, T>, In<'_, U>), learn: impl FnOnce(&Driver, T, U))
where
    T: Copy,
    U: Copy,
{
    if let (Ok(driver), Ok(one), Ok(other)) = (driver(), one.get(), other.get()) {
        learn(driver, one, other);
    }
}

pub(crate) fn made_array(array: In<'_, CUarray>, descriptor: In<'_, CUDA_ARRAY_DESCRIPTOR>) {
    learn((array, descriptor), |driver, array, flat| {
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            num_channels: flat.num_channels,
            flags: 0,
        };
        driver.arrays.made(array, &descriptor);
    });
}

pub(crate) fn made_array_3d(array: In<'_, CUarray>, descriptor: In<'_, CUDA_ARRAY3D_DESCRIPTOR>) {
    learn((array, descriptor), |driver, array, descriptor| {
        driver.arrays.made(array, &descriptor);
    });
}

pub(crate) fn made_mipmap(
    mipmap: In<'_, CUmipmappedArray>,
    descriptor: In<'_, CUDA_ARRAY3D_DESCRIPTOR>,
) {
    learn((mipmap, descriptor), |driver, mipmap, descriptor| {
        driver.arrays.made_mipmap(mipmap, descriptor);
    });
}

pub(crate) fn made_level(array: In<'_, CUarray>, mipmap: CUmipmappedArray, level: u32) {
    if let (Ok(driver), Ok(array)) = (driver(), array.get()) {
        driver.arrays.made_level(array, mipmap, level);
    }
}

pub(crate) fn ended_array(array: CUarray) {
    if let Ok(driver) = driver() {
        driver.arrays.ended(array);
    }
}

pub(crate) fn ended_mipmap(mipmap: CUmipmappedArray) {
    if let Ok(driver) = driver() {
        driver.arrays.ended_mipmap(mipmap);
    }
}
