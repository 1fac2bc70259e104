//! Sizes of arrays. The driver refuses a copy beyond one at the call, and so does the client.

use outboard_api::{
    CUresult,
    cuda::{CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray},
    enums::*,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// `CUDA_ARRAY3D_LAYERED`, `CUDA_ARRAY3D_CUBEMAP`: levels have as many layers.
const LAYERED_OR_CUBE: u32 = 0x01 | 0x04;

/// Arrays whose elements have a known size. A copy of another is checked by the server alone.
#[derive(Default)]
pub(crate) struct Arrays(Mutex<Table>);

#[derive(Default)]
struct Table {
    sizes: FxHashMap<CUarray, Size>,
    mipmaps: FxHashMap<CUmipmappedArray, Mipmap>,
}

struct Mipmap {
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    levels: Vec<CUarray>,
}

/// Bytes of a row, rows, and slices or layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size([u64; 3]);

impl Size {
    fn of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<Size> {
        let channel_bytes = match descriptor.format {
            CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
            CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
            CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
            _ => return None,
        };
        let element_bytes = channel_bytes * u64::from(descriptor.num_channels);
        let row_bytes = (descriptor.width as u64).checked_mul(element_bytes)?;
        let at_least_one = |count: usize| count.max(1) as u64;
        Some(Size([
            row_bytes,
            at_least_one(descriptor.height),
            at_least_one(descriptor.depth),
        ]))
    }

    /// Returns whether a box of this extent fits at this byte, row and slice.
    fn holds(&self, at: [u64; 3], extent: [u64; 3]) -> bool {
        let ends = at.iter().zip(extent).zip(self.0);
        let mut fit =
            ends.map(|((at, extent), size)| at.checked_add(extent).is_some_and(|end| end <= size));
        fit.all(|fits| fits)
    }
}

/// Returns the size of a level of a mipmapped array. A dimension of 0 is none.
fn level_of(whole: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let halved = |size: usize| match size {
        0 => 0,
        size => size.checked_shr(level).unwrap_or(0).max(1),
    };
    CUDA_ARRAY3D_DESCRIPTOR {
        width: halved(whole.width),
        height: halved(whole.height),
        depth: match whole.flags & LAYERED_OR_CUBE {
            0 => halved(whole.depth),
            _ => whole.depth,
        },
        ..*whole
    }
}

impl Arrays {
    pub(crate) fn made(&self, array: CUarray, descriptor: &CUDA_ARRAY3D_DESCRIPTOR) {
        if let Some(size) = Size::of(descriptor) {
            self.0.lock().sizes.insert(array, size);
        }
    }

    pub(crate) fn made_mipmap(
        &self,
        mipmap: CUmipmappedArray,
        descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    ) {
        let levels = Vec::new();
        let made = Mipmap { descriptor, levels };
        self.0.lock().mipmaps.insert(mipmap, made);
    }

    pub(crate) fn made_level(&self, array: CUarray, mipmap: CUmipmappedArray, level: u32) {
        let mut table = self.0.lock();
        let Some(whole) = table.mipmaps.get_mut(&mipmap) else {
            return;
        };
        whole.levels.push(array);
        if let Some(size) = Size::of(&level_of(&whole.descriptor, level)) {
            table.sizes.insert(array, size);
        }
    }

    pub(crate) fn ended(&self, array: CUarray) {
        self.0.lock().sizes.remove(&array);
    }

    pub(crate) fn ended_mipmap(&self, mipmap: CUmipmappedArray) {
        let mut table = self.0.lock();
        let levels = table.mipmaps.remove(&mipmap).map(|ended| ended.levels);
        for level in levels.into_iter().flatten() {
            table.sizes.remove(&level);
        }
    }

    /// Refuses a copy of this extent, in bytes, rows and slices, that begins here and goes beyond
    /// the array.
    pub(crate) fn check(
        &self,
        array: CUarray,
        at: [u64; 3],
        extent: [u64; 3],
    ) -> Result<(), CUresult> {
        match self.0.lock().sizes.get(&array) {
            Some(size) if !size.holds(at, extent) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            _ => Ok(()),
        }
    }

    /// Refuses a copy of bytes in a line beyond an array of one row; for others the server knows.
    pub(crate) fn check_line(&self, array: CUarray, at: u64, bytes: u64) -> Result<(), CUresult> {
        match self.0.lock().sizes.get(&array) {
            Some(size @ Size([_, 1, 1])) if !size.holds([at, 0, 0], [bytes, 1, 1]) => {
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAT: CUDA_ARRAY3D_DESCRIPTOR = CUDA_ARRAY3D_DESCRIPTOR {
        width: 20,
        height: 6,
        depth: 0,
        format: CU_AD_FORMAT_FLOAT,
        num_channels: 2,
        flags: 0,
    };

    #[test]
    fn a_copy_ends_with_its_array() {
        let (arrays, array) = (Arrays::default(), CUarray(1));
        let check = |at, extent| arrays.check(array, at, extent).is_ok();
        assert!(check([0; 3], [u64::MAX; 3]), "nothing is known of it");
        arrays.made(array, &FLAT);
        assert!(check([0; 3], [160, 6, 1]) && check([152, 5, 0], [8, 1, 1]));
        for (at, extent) in [
            ([1, 0, 0], [160, 6, 1]),
            ([0, 1, 0], [160, 6, 1]),
            ([0, 0, 1], [160, 6, 1]),
            ([0; 3], [161, 6, 1]),
            ([0; 3], [160, 7, 1]),
            ([0; 3], [160, 6, 2]),
            ([u64::MAX; 3], [1; 3]),
        ] {
            assert!(!check(at, extent), "{at:?} {extent:?}");
        }
        assert!(arrays.check_line(array, 0, 161).is_ok(), "the server knows");
        arrays.ended(array);
        assert!(check([0; 3], [161, 1, 1]));
    }

    #[test]
    fn a_line_has_a_row() {
        let line = CUDA_ARRAY3D_DESCRIPTOR { height: 0, ..FLAT };
        assert_eq!(Size::of(&line), Some(Size([160, 1, 1])));
        let (arrays, array) = (Arrays::default(), CUarray(1));
        arrays.made(array, &line);
        assert!(arrays.check_line(array, 100, 60).is_ok());
        assert!(arrays.check_line(array, 101, 60).is_err());
        let blocks = CUDA_ARRAY3D_DESCRIPTOR {
            format: CU_AD_FORMAT_BC1_UNORM,
            ..FLAT
        };
        assert_eq!(Size::of(&blocks), None);
    }

    #[test]
    fn levels_are_halved_but_not_layers() {
        let (arrays, mipmap) = (Arrays::default(), CUmipmappedArray(1));
        let size = |array| arrays.0.lock().sizes.get(&CUarray(array)).copied();
        for (flags, slices) in [(0, 2), (1, 8)] {
            let whole = CUDA_ARRAY3D_DESCRIPTOR {
                depth: 8,
                flags,
                ..FLAT
            };
            arrays.made_mipmap(mipmap, whole);
            arrays.made_level(CUarray(2), mipmap, 2);
            assert_eq!(size(2), Some(Size([40, 1, slices])));
            arrays.made_level(CUarray(3), mipmap, 4);
            assert_eq!(size(3).map(|size| size.0[0]), Some(8));
            arrays.ended_mipmap(mipmap);
            assert_eq!((size(2), size(3)), (None, None));
        }
    }
}
