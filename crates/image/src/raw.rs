//! Finds the length of an image at the bare pointer that a program passes to `cuModuleLoadData` or
//! `cuLibraryLoadData`.
//!
//! Only the image itself says how long its memory is. This is the only module that dereferences
//! pointers; the safe decoders decide, on the slices formed so far.

use std::{ffi::c_void, slice};

use crate::{Error, cubin, fatbin, limits, ptx};

/// `__fatBinC_Wrapper_t` of `fatbinary_section.h`.
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// Version whose second pointer is a file name, which is not used.
const WRAPPER_VERSION: u32 = 1;
/// Version for a container that was linked from others; the second pointer is a NULL-terminated
/// list of them.
const WRAPPER_VERSION_LINKED: u32 = 2;

#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    container: *const u8,
    prelinked: *const *const u8,
}

const _: () = assert!(size_of::<Wrapper>() == 24);

/// An image that was found at a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawImage<'a> {
    /// The input of [`crate::Image::parse`]: a container, a cubin, or PTX without its NUL.
    pub bytes: &'a [u8],
    /// The containers from which `bytes` was linked (`nvcc -rdc=true`). A driver links them again
    /// if no linked code fits its device. Empty for nearly all programs.
    pub prelinked: Vec<&'a [u8]>,
}

impl<'a> RawImage<'a> {
    /// Makes an image of a file's content.
    pub fn whole(bytes: &'a [u8]) -> Self {
        RawImage {
            bytes,
            prelinked: Vec::new(),
        }
    }
}

/// Finds the image at `image`, and its end.
///
/// # Safety
///
/// `image` is NULL or points to a complete image in one of the driver's formats, which the caller
/// keeps alive and unchanged for `'a`: the contract of `cuModuleLoadData`. An image that claims to
/// be longer than its memory is read past its end, as the driver does; claims beyond [`limits`] are
/// refused, and so are bytes that do not start like an image.
pub unsafe fn locate<'a>(image: *const c_void) -> Result<RawImage<'a>, Error> {
    let start = image.cast::<u8>();
    // SAFETY: NULL or a complete image, by this function's contract.
    let found = unsafe { first_bytes(start) }?;
    let bytes = match u32::from_le_bytes(found) {
        // SAFETY: the magic says that a wrapper is here.
        WRAPPER_MAGIC => return unsafe { wrapped(start) },
        // SAFETY: the magic says that a container is here.
        fatbin::MAGIC => unsafe { container(start) }?,
        // SAFETY: the magic says that an ELF file is here.
        cubin::MAGIC => unsafe { elf(start) }?,
        // SAFETY: bytes that start like PTX are NUL-terminated text by the contract.
        _ if ptx::looks_like_text(&found) => unsafe { text(start) }?,
        _ => {
            return Err(Error::NotAnImage {
                found: found.to_vec(),
            });
        }
    };
    Ok(RawImage {
        bytes,
        prelinked: Vec::new(),
    })
}

/// Reads the first four bytes; zeros after the first NUL, since a text may be shorter than a magic
/// number.
///
/// # Safety
///
/// As for [`locate`].
unsafe fn first_bytes(start: *const u8) -> Result<[u8; 4], Error> {
    if start.is_null() {
        return Err(Error::Null);
    }
    let mut found = [0; 4];
    for (index, byte) in found.iter_mut().enumerate() {
        // SAFETY: every image has at least one byte, and another after each that is not NUL. No
        // binary magic number contains a NUL.
        *byte = unsafe { start.add(index).read() };
        if *byte == 0 {
            break;
        }
    }
    Ok(found)
}

/// # Safety
///
/// `start` points to a wrapper, whose pointers keep the contract of [`locate`].
unsafe fn wrapped<'a>(start: *const u8) -> Result<RawImage<'a>, Error> {
    // SAFETY: a wrapper is here by contract; its alignment is not promised, so the read is
    // unaligned.
    let wrapper = unsafe { start.cast::<Wrapper>().read_unaligned() };
    let is_linked = match wrapper.version {
        WRAPPER_VERSION => false,
        WRAPPER_VERSION_LINKED => true,
        other => {
            let found = u64::from(other);
            return Err(Error::Malformed {
                what: "fatbin wrapper version",
                offset: 4,
                expected: "1 or 2",
                found,
            });
        }
    };
    if wrapper.container.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: a wrapper's first pointer leads to a container.
    let bytes = unsafe { container(wrapper.container) }?;
    let mut prelinked = Vec::new();
    if is_linked && !wrapper.prelinked.is_null() {
        loop {
            if prelinked.len() == limits::PRELINKED_MAX {
                let max = limits::PRELINKED_MAX as u64;
                return Err(Error::TooLarge {
                    what: "prelinked container count",
                    offset: 16,
                    found: max + 1,
                    max,
                });
            }
            // SAFETY: the list continues until its NULL, which has not come yet.
            let next = unsafe { wrapper.prelinked.add(prelinked.len()).read_unaligned() };
            if next.is_null() {
                break;
            }
            // SAFETY: the list of a linked wrapper holds pointers to containers.
            prelinked.push(unsafe { container(next) }?);
        }
    }
    Ok(RawImage { bytes, prelinked })
}

/// # Safety
///
/// `start` points to a fatbin container valid for `'a`.
unsafe fn container<'a>(start: *const u8) -> Result<&'a [u8], Error> {
    // SAFETY: a container has at least its header.
    let header = unsafe { slice::from_raw_parts(start, fatbin::HEADER_BYTES) };
    let len = fatbin::extent(header)?;
    // SAFETY: the header says that the container is this long, which is less than `isize::MAX` by
    // the limit.
    Ok(unsafe { slice::from_raw_parts(start, len) })
}

/// # Safety
///
/// `start` points to an ELF file valid for `'a`.
unsafe fn elf<'a>(start: *const u8) -> Result<&'a [u8], Error> {
    // SAFETY: an ELF file has at least its header.
    let header = unsafe { slice::from_raw_parts(start, cubin::HEADER_BYTES) };
    let known = cubin::tables_extent(header)?;
    // SAFETY: the header says that at least the first section's entry (with few sections all
    // tables) ends here.
    let known = unsafe { slice::from_raw_parts(start, known) };
    let tables = cubin::tables_extent(known)?;
    // SAFETY: the header and the first section's entry say that the tables end here.
    let with_tables = unsafe { slice::from_raw_parts(start, tables) };
    let len = cubin::extent(with_tables)?;
    // SAFETY: the section table says that the last section ends here, less than `isize::MAX` by the
    // limit.
    Ok(unsafe { slice::from_raw_parts(start, len) })
}

/// # Safety
///
/// `start` points to NUL-terminated text valid for `'a`.
unsafe fn text<'a>(start: *const u8) -> Result<&'a [u8], Error> {
    // SAFETY: the text ends with a NUL by contract.
    let len = unsafe { length(start, limits::PTX_BYTES_MAX) };
    if len == limits::PTX_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "PTX text",
            offset: 0,
            found: len as u64,
            max: limits::PTX_BYTES_MAX as u64,
        });
    }
    // SAFETY: the search above has read `len` bytes from `start`.
    Ok(unsafe { slice::from_raw_parts(start, len) })
}

/// Returns the bytes before the text's NUL, or `max` if it is not among as many.
///
/// # Safety
///
/// `start` points to NUL-terminated text.
#[cfg(not(miri))]
unsafe fn length(start: *const u8, max: usize) -> usize {
    // SAFETY: the text ends with a NUL by contract; `strnlen` stops there, or at the limit.
    unsafe { libc::strnlen(start.cast(), max) }
}

/// Stands in for `strnlen`, which Miri does not know.
///
/// # Safety
///
/// `start` points to NUL-terminated text.
#[cfg(miri)]
unsafe fn length(start: *const u8, max: usize) -> usize {
    // SAFETY: the text ends with a NUL by contract, and nothing behind it is read.
    let is_over = |len: &usize| unsafe { *start.add(*len) } == 0;
    (0..max).find(is_over).unwrap_or(max)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::Image;

    static FATBIN: &[u8] = include_bytes!("../tests/data/size.fatbin");
    static OTHER_FATBIN: &[u8] = include_bytes!("../tests/data/speed.fatbin");
    static CUBIN: &[u8] = include_bytes!("../tests/data/cuda12_sm_80.cubin");
    static PTX: &[u8] = include_bytes!("../tests/data/compute_80.ptx");

    /// Appends bytes to an image, which must not be taken for a part of it.
    fn followed(image: &[u8], by: &[u8]) -> Vec<u8> {
        [image, by].concat()
    }

    fn find<T>(image: *const T) -> Result<RawImage<'static>, Error> {
        // SAFETY: every test passes a complete image, or one that is refused before its end is
        // needed, and leaks or outlives it.
        unsafe { locate(image.cast()) }
    }

    #[test]
    fn each_form_ends_where_its_headers_say() {
        for image in [FATBIN, CUBIN] {
            let memory = followed(image, &[0xee; 64]).leak();
            assert_eq!(
                find(memory.as_ptr()).unwrap(),
                RawImage {
                    bytes: image,
                    prelinked: vec![]
                }
            );
        }
        let memory = followed(PTX, b"\0.version 1.0").leak();
        assert_eq!(find(memory.as_ptr()).unwrap().bytes, PTX);
        // As containers hold it: after blank lines.
        let memory = followed(b"\n\n\n\n\n\n", &followed(PTX, b"\0\0\0")).leak();
        assert_eq!(
            find(memory.as_ptr()).unwrap().bytes.trim_ascii(),
            PTX.trim_ascii()
        );
    }

    #[test]
    fn a_wrapper_leads_to_its_container() {
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: 1,
            container: FATBIN.as_ptr(),
            prelinked: ptr::dangling(),
        };
        let found = find(&raw const wrapper).unwrap();
        assert_eq!(
            found,
            RawImage {
                bytes: FATBIN,
                prelinked: vec![]
            }
        );
        assert_eq!(Image::parse(found.bytes).unwrap().entries().len(), 2);
    }

    #[test]
    fn a_linked_wrapper_lists_what_it_was_linked_from() {
        let list = [FATBIN.as_ptr(), OTHER_FATBIN.as_ptr(), ptr::null()];
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: 2,
            container: OTHER_FATBIN.as_ptr(),
            prelinked: list.as_ptr(),
        };
        let found = find(&raw const wrapper).unwrap();
        assert_eq!(
            found,
            RawImage {
                bytes: OTHER_FATBIN,
                prelinked: vec![FATBIN, OTHER_FATBIN]
            }
        );

        for list in [&[ptr::null()][..], &[]] {
            let prelinked = if list.is_empty() {
                ptr::null()
            } else {
                list.as_ptr()
            };
            let wrapper = Wrapper {
                magic: WRAPPER_MAGIC,
                version: 2,
                container: FATBIN.as_ptr(),
                prelinked,
            };
            assert_eq!(
                find(&raw const wrapper).unwrap(),
                RawImage {
                    bytes: FATBIN,
                    prelinked: vec![]
                }
            );
        }
    }

    #[test]
    fn what_is_no_image_is_refused_at_its_first_bytes() {
        assert_eq!(find(ptr::null::<u8>()), Err(Error::Null));
        for start in [&b"\0"[..], b"x\0", b"\x7fELG", b"\xb1Cbf", b"BC\xc0\xde"] {
            assert!(
                matches!(find(start.as_ptr()), Err(Error::NotAnImage { .. })),
                "{start:?}"
            );
        }
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: 3,
            container: FATBIN.as_ptr(),
            prelinked: ptr::null(),
        };
        assert!(matches!(
            find(&raw const wrapper),
            Err(Error::Malformed {
                offset: 4,
                found: 3,
                ..
            })
        ));
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: 1,
            container: ptr::null(),
            prelinked: ptr::null(),
        };
        assert_eq!(find(&raw const wrapper), Err(Error::Null));
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            version: 1,
            container: CUBIN.as_ptr(),
            prelinked: ptr::null(),
        };
        assert!(matches!(
            find(&raw const wrapper),
            Err(Error::Malformed {
                what: "fatbin magic",
                ..
            })
        ));
    }

    #[test]
    fn claims_beyond_the_limits_are_refused_before_they_are_followed() {
        let mut header = FATBIN[..16].to_vec();
        header[8..16].copy_from_slice(&(limits::IMAGE_BYTES_MAX as u64).to_le_bytes());
        assert!(matches!(
            find(header.leak().as_ptr()),
            Err(Error::TooLarge { .. })
        ));
        let mut header = CUBIN[..64].to_vec();
        header[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(
            find(header.leak().as_ptr()),
            Err(Error::TooLarge { .. })
        ));
    }
}
