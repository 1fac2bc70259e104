//! The linker: inputs travel as images do, the linked cubin comes back and is kept for as long as the program may look
//! at it.

use std::ffi::{CStr, c_char, c_void};

use outboard_api::{CUresult, cuda::CUlinkState, enums::*};
use outboard_wire::{doc, limits::CHUNK_BYTES_MAX, messages};

use super::{Done, module::Jit, module::read_file, put, put_optional};
use crate::state::{Driver, driver};

/// The longest cubin that is believed.
const CUBIN_BYTES_MAX: u64 = 4 << 30;

/// A linker between `cuLinkCreate` and `cuLinkDestroy`.
pub(crate) struct Link {
    /// Where its words go.
    jit: Jit,
    /// What `cuLinkComplete` handed out a pointer to, and a NUL.
    image: Option<Box<[u8]>>,
}

// SAFETY: the log buffers are the program's, valid for as long as the linker as `cuLinkCreate` asks; they are written
// under the lock of the table only.
unsafe impl Send for Link {}

impl Driver {
    fn create_link(&self, jit: Jit) -> Result<CUlinkState, CUresult> {
        let options =
            doc::to_bytes(&jit.options).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let number = self.mint_link();
        self.call(
            &messages::LinkCreate {
                link: number,
                options: &options,
            },
            |_| (),
        )?;
        let mut links = self.links.lock();
        // Linkers that were destroyed since: `cuLinkDestroy` itself is generated and knows only their handles.
        links.retain(|link, _| self.wire_link(CUlinkState(*link as usize)).is_ok());
        let state = self.handle_link(number);
        links.insert(number, Link { jit, image: None });
        Ok(state)
    }

    fn link_add(
        &self,
        state: CUlinkState,
        input_type: u32,
        image: &[u8],
        name: &CStr,
        jit: &Jit,
    ) -> Done {
        let link = self.wire_link(state)?;
        if input_type >= CU_JIT_NUM_INPUT_TYPES || image.is_empty() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let hash = self.offer_image(image)?;
        let options =
            doc::to_bytes(&jit.options).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let message = messages::LinkAdd {
            link,
            input_type,
            hash: &hash,
            name: name.to_bytes(),
            options: &options,
        };
        let (status, info, error) = self.call(&message, |reply| {
            (
                CUresult(reply.status),
                reply.info_log.to_vec(),
                reply.error_log.to_vec(),
            )
        })?;
        self.write_link_logs(link, &info, &error);
        status.ok()
    }

    /// Nothing new leaves what earlier inputs had the linker say.
    fn write_link_logs(&self, link: u64, info: &[u8], error: &[u8]) {
        if info.is_empty() && error.is_empty() {
            return;
        }
        if let Some(link) = self.links.lock().get(&link) {
            link.jit.write_logs(info, error);
        }
    }

    /// The linked image: its address and length.
    fn link_complete(&self, state: CUlinkState) -> Result<(*mut c_void, usize), CUresult> {
        let link = self.wire_link(state)?;
        if let Some(known) = self.linked_image(link) {
            return Ok(known);
        }
        let (status, hash, len, info, error) =
            self.call(&messages::LinkComplete { link }, |reply| {
                (
                    CUresult(reply.status),
                    <[u8; 32]>::try_from(&*reply.hash),
                    reply.len,
                    reply.info_log.to_vec(),
                    reply.error_log.to_vec(),
                )
            })?;
        self.write_link_logs(link, &info, &error);
        status.ok()?;
        let hash = hash.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let image = self.fetch_image(&hash, len)?;
        if let Some(link) = self.links.lock().get_mut(&link) {
            link.image.get_or_insert(image);
        }
        self.linked_image(link)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    fn linked_image(&self, link: u64) -> Option<(*mut c_void, usize)> {
        let links = self.links.lock();
        let image = links.get(&link)?.image.as_ref()?;
        Some((image.as_ptr().cast_mut().cast(), image.len() - 1))
    }

    /// An image that the server has and this process does not, and a NUL.
    fn fetch_image(&self, hash: &[u8; 32], len: u64) -> Result<Box<[u8]>, CUresult> {
        if len > CUBIN_BYTES_MAX {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut image = Vec::new();
        while (image.len() as u64) < len {
            let offset = image.len() as u64;
            let wanted = (len - offset).min(CHUNK_BYTES_MAX as u64);
            let got = self.call(
                &messages::ImageGet {
                    hash,
                    offset,
                    len: wanted,
                },
                |reply| {
                    image.extend_from_slice(&reply.data);
                    reply.data.len() as u64
                },
            )?;
            if got == 0 || got > wanted {
                return Err(CUresult::CUDA_ERROR_UNKNOWN);
            }
        }
        if blake3::hash(&image).as_bytes() != hash {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        // Where the image is text, whoever loads it looks for its NUL.
        image.push(0);
        Ok(image.into())
    }
}

pub(crate) unsafe fn cuLinkCreate_v2(
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    if state.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe {
        put(
            state,
            driver.create_link(Jit::read(count, options, values)?)?,
        )
    }
}

pub(crate) unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    input_type: u32,
    data: *mut c_void,
    bytes: usize,
    name: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    if data.is_null() || bytes == 0 || bytes > isize::MAX as usize {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: `bytes` bytes of the caller's; a name or NULL; options as `cuLinkAddData` describes them.
    unsafe {
        let image = std::slice::from_raw_parts(data.cast::<u8>(), bytes);
        let name = if name.is_null() {
            c""
        } else {
            CStr::from_ptr(name)
        };
        driver.link_add(
            state,
            input_type,
            image,
            name,
            &Jit::read(count, options, values)?,
        )
    }
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    state: CUlinkState,
    input_type: u32,
    path: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    let mut image = read_file(path)?;
    if input_type == CU_JIT_INPUT_PTX && image.last() != Some(&0) {
        // As a program would pass it to `cuLinkAddData`.
        image.push(0);
    }
    // SAFETY: `read_file` has checked the path; options as `cuLinkAddFile` describes them.
    unsafe {
        driver.link_add(
            state,
            input_type,
            &image,
            CStr::from_ptr(path),
            &Jit::read(count, options, values)?,
        )
    }
}

pub(crate) unsafe fn cuLinkComplete(
    state: CUlinkState,
    cubin: *mut *mut c_void,
    bytes: *mut usize,
) -> Done {
    let driver = driver()?;
    if cubin.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (address, len) = driver.link_complete(state)?;
    // SAFETY: see the module's contract.
    unsafe {
        put_optional(bytes, len);
        put(cubin, address)
    }
}
