//! The linker. Inputs travel as images do. The linked cubin is fetched and kept for as long as the
//! program may read it.

use std::ffi::{CStr, c_void};

use outboard_api::{CUresult, cuda::CUlinkState, enums::*};
use outboard_image::{Image, raw::RawImage};
use outboard_wire::{
    doc::{self, LibraryCard},
    limits::CHUNK_BYTES_MAX,
    messages,
};

use super::{Done, Out, Text, module::read_file};
use crate::state::{Driver, Jit, Linker, driver};

/// Length of the longest cubin accepted from the server, in bytes.
const CUBIN_BYTES_MAX: u64 = 4 << 30;

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
        // Removes destroyed linkers: `cuLinkDestroy` itself is generated and knows only their
        // handles.
        links.retain(|link, _| self.wire_link(CUlinkState(*link as usize)).is_ok());
        let state = self.handle_link(number);
        links.insert(number, Linker { jit, image: None });
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
        let (status, info, error) = self.add_input(link, input_type, image, name, jit)?;
        self.write_link_logs(link, &info, &error);
        status.ok()
    }

    /// Adds an input to the linker. Returns its status, and its information and error messages.
    fn add_input(
        &self,
        link: u64,
        input_type: u32,
        image: &[u8],
        name: &CStr,
        jit: &Jit,
    ) -> Result<(CUresult, Vec<u8>, Vec<u8>), CUresult> {
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
        self.call(&message, |reply| {
            (
                CUresult(reply.status),
                reply.info_log.to_vec(),
                reply.error_log.to_vec(),
            )
        })
    }

    /// Writes the linker's messages. Without new messages the earlier ones stay.
    fn write_link_logs(&self, link: u64, info: &[u8], error: &[u8]) {
        if info.is_empty() && error.is_empty() {
            return;
        }
        if let Some(link) = self.links.lock().get(&link) {
            link.jit.write_logs(info, error);
        }
    }

    /// Returns the address and length of the linked image.
    fn link_complete(&self, state: CUlinkState) -> Result<(*mut c_void, usize), CUresult> {
        let link = self.wire_link(state)?;
        if let Some(known) = self.linked_image(link) {
            return Ok(known);
        }
        let (hash, len) = self.link_finish(link, |_, info, error| {
            self.write_link_logs(link, info, error);
        })?;
        let image = self.fetch_image(&hash, len)?;
        if let Some(link) = self.links.lock().get_mut(&link) {
            link.image.get_or_insert(image);
        }
        self.linked_image(link)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Loads the image that the program points to, as a library of this number. A relocatable build
    /// also contains one image per object file. If the linked image has no code for the GPU, which
    /// is so with PTX alone, the server links the objects instead.
    pub(super) fn load_found(
        &self,
        number: u64,
        found: &RawImage<'_>,
        jit: &Jit,
    ) -> Result<LibraryCard, CUresult> {
        let is_linked = |bytes| Image::parse(bytes).is_ok_and(|image| !image.entries().is_empty());
        if found.prelinked.is_empty() || is_linked(found.bytes) {
            let loaded = self.load(number, found.bytes, jit);
            let fits = !matches!(loaded, Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU));
            if fits || found.prelinked.is_empty() {
                return loaded;
            }
        }
        let (hash, len) = self.link_objects(&found.prelinked, jit)?;
        self.load_sent(number, &hash, len, jit)?.card()
    }

    /// Links the objects of a relocatable build; the server holds the result.
    fn link_objects(&self, objects: &[&[u8]], jit: &Jit) -> Result<([u8; 32], u64), CUresult> {
        let link = self.wire_link(self.create_link(Jit::default())?)?;
        let linked = self.link_into(link, objects, jit);
        self.submit(&messages::CuLinkDestroy { state: link })?;
        linked
    }

    fn link_into(
        &self,
        link: u64,
        objects: &[&[u8]],
        jit: &Jit,
    ) -> Result<([u8; 32], u64), CUresult> {
        for object in objects {
            let (status, info, error) =
                self.add_input(link, CU_JIT_INPUT_FATBINARY, object, c"", &Jit::default())?;
            jit.say(status, &info, &error);
            status.ok()?;
        }
        self.link_finish(link, |status, info, error| jit.say(status, info, error))
    }

    /// Returns the linked image's hash and length. `logs` receives the linker's messages.
    fn link_finish(
        &self,
        link: u64,
        logs: impl FnOnce(CUresult, &[u8], &[u8]),
    ) -> Result<([u8; 32], u64), CUresult> {
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
        logs(status, &info, &error);
        status.ok()?;
        let hash = hash.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok((hash, len))
    }

    fn linked_image(&self, link: u64) -> Option<(*mut c_void, usize)> {
        let links = self.links.lock();
        let image = links.get(&link)?.image.as_ref()?;
        Some((image.as_ptr().cast_mut().cast(), image.len() - 1))
    }

    /// Fetches an image from the server, and appends a NUL.
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
        // If the image is text, its loader looks for the NUL.
        image.push(0);
        Ok(image.into())
    }
}

pub(crate) unsafe fn cuLinkCreate_v2(
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
    state: Out<'_, CUlinkState>,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    state.check()?;
    // SAFETY: `count` options with their values: the driver API asks it of its callers.
    let jit = unsafe { Jit::read(count, options, values)? };
    state.put(driver.create_link(jit)?)
}

pub(crate) unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    input_type: u32,
    data: *mut c_void,
    bytes: usize,
    name: Text<'_>,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    if data.is_null() || bytes == 0 || bytes > isize::MAX as usize {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: `data` has `bytes` bytes, and there are `count` options with their values: the driver
    // API asks it of its callers.
    let (image, jit) = unsafe {
        let image = std::slice::from_raw_parts(data.cast::<u8>(), bytes);
        (image, Jit::read(count, options, values)?)
    };
    let name = name.get_optional().unwrap_or(c"");
    driver.link_add(state, input_type, image, name, &jit)
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    state: CUlinkState,
    input_type: u32,
    path: Text<'_>,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    let mut image = read_file(path)?;
    if input_type == CU_JIT_INPUT_PTX && image.last() != Some(&0) {
        // A program would pass a text with its NUL to `cuLinkAddData`.
        image.push(0);
    }
    // SAFETY: `count` options with their values: the driver API asks it of its callers.
    let jit = unsafe { Jit::read(count, options, values)? };
    driver.link_add(state, input_type, &image, path.get()?, &jit)
}

pub(crate) unsafe fn cuLinkComplete(
    state: CUlinkState,
    cubin: Out<'_, *mut c_void>,
    bytes: Out<'_, usize>,
) -> Done {
    let driver = driver()?;
    cubin.check()?;
    let (address, len) = driver.link_complete(state)?;
    bytes.put_optional(len);
    cubin.put(address)
}
