//! Modules and libraries. An image is sent once; afterwards the server knows it by its hash.

use std::{
    ffi::{OsStr, c_void},
    os::unix::ffi::OsStrExt as _,
    sync::atomic::Ordering,
};

use outboard_api::{
    CUresult,
    cuda::{CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule},
    enums::*,
};
use outboard_image::raw::{self, RawImage};
use outboard_wire::{
    doc::{self, LibraryCard},
    limits::{CHUNK_BYTES_MAX, IMAGE_KEPT_BYTES_MIN},
    messages,
};

use super::{Done, Out, Text};
use crate::{
    log,
    state::{
        AllocationKind, Driver, Global, HandleKind, Jit, Library, Places, are_several,
        current_context, driver, drivers, mint_library, on,
    },
};

/// The server's reply to a load.
pub(super) struct Loaded {
    status: CUresult,
    is_missing: bool,
    card: Option<LibraryCard>,
}

impl Loaded {
    /// Returns what the server has loaded.
    pub(super) fn card(self) -> Result<LibraryCard, CUresult> {
        if self.is_missing {
            // The reason is an error of its own, which a later call reports.
            return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
        }
        self.status.ok()?;
        self.card.ok_or(CUresult::CUDA_ERROR_UNKNOWN)
    }
}

impl Driver {
    /// Ensures that the server has the image, and returns its hash.
    pub(crate) fn offer_image(&self, image: &[u8]) -> Result<[u8; 32], CUresult> {
        let hash = *blake3::hash(image).as_bytes();
        let len = image.len() as u64;
        let offer = messages::ImageOffer { hash: &hash, len };
        if self.call(&offer, |reply| reply.present)? == 0 {
            self.send_image(&hash, image)?;
        }
        Ok(hash)
    }

    fn send_image(&self, hash: &[u8; 32], image: &[u8]) -> Done {
        for (index, data) in image.chunks(CHUNK_BYTES_MAX).enumerate() {
            self.submit(&messages::ImagePut {
                hash,
                offset: (index * CHUNK_BYTES_MAX) as u64,
                len: image.len() as u64,
                data,
            })?;
        }
        Ok(())
    }

    /// Loads an image as a library of this number.
    pub(super) fn load(
        &self,
        number: u64,
        image: &[u8],
        jit: &Jit,
    ) -> Result<LibraryCard, CUresult> {
        let hash = *blake3::hash(image).as_bytes();
        // Small images, which servers do not keep between sessions, are always sent. Others are
        // sent only if the server lacks them.
        let is_sent = image.len() < IMAGE_KEPT_BYTES_MIN;
        if is_sent {
            self.send_image(&hash, image)?;
        }
        let mut loaded = self.load_sent(number, &hash, image.len() as u64, jit)?;
        if loaded.is_missing && !is_sent {
            self.send_image(&hash, image)?;
            loaded = self.load_sent(number, &hash, image.len() as u64, jit)?;
        }
        loaded.card()
    }

    pub(super) fn load_sent(
        &self,
        number: u64,
        hash: &[u8; 32],
        len: u64,
        jit: &Jit,
    ) -> Result<Loaded, CUresult> {
        let options =
            doc::to_bytes(&jit.options).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.call(
            &messages::LibraryLoad {
                library: number,
                hash,
                len,
                options: &options,
            },
            |reply| {
                if reply.missing != 0 {
                    return Loaded {
                        status: CUresult::CUDA_SUCCESS,
                        is_missing: true,
                        card: None,
                    };
                }
                jit.say(CUresult(reply.status), &reply.info_log, &reply.error_log);
                Loaded {
                    status: CUresult(reply.status),
                    is_missing: false,
                    card: doc::from_bytes(&reply.card).ok(),
                }
            },
        )
    }

    fn unload(&self, library: &Library) -> Done {
        self.libraries.remove(library);
        let globals: Vec<Global> = library.globals.lock().values().copied().collect();
        for global in globals {
            if global.managed {
                self.disown_variable(global.address);
            } else {
                self.memory.lock().disown(global.address);
            }
        }
        self.memory.lock().forget_modules();
        self.submit(&messages::LibraryUnload {
            library: library.number,
        })
    }

    /// Returns a variable of a library in the current context. A managed variable is the same in
    /// all contexts, and needs none.
    fn global(&self, library: &Library, name: &[u8]) -> Result<Global, CUresult> {
        // A module's variables are those of its own context, whichever is current.
        let context = match library.context {
            Some(own) => self.contexts.get(own),
            None => self.contexts.current(),
        };
        let number = context.map_or(0, |c| c.handle.0);
        let key = (number, name.to_vec());
        if let Some(known) = library.globals.lock().get(&key) {
            return Ok(*known);
        }
        let found = self.session.call(
            number as u64,
            &messages::LibraryGlobal {
                library: library.number,
                name,
            },
            |reply| Global {
                address: reply.va,
                bytes: reply.len,
                managed: reply.managed != 0,
            },
        )?;
        if found.managed {
            self.adopt_variable(found.address, found.bytes)?;
        } else {
            let context = context?;
            self.memory.lock().adopt(
                found.address,
                found.bytes,
                context.handle,
                context.device,
                AllocationKind::Global,
            );
        }
        library.globals.lock().insert(key, found);
        Ok(found)
    }
}

/// Reads the image that a program points to.
///
/// # Safety
/// `image` is NULL or an image as the driver API describes it.
unsafe fn find_image<'a>(image: *const c_void) -> Result<RawImage<'a>, CUresult> {
    if image.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so it is an image by this function's contract.
    match unsafe { raw::locate(image) } {
        Ok(found) => Ok(found),
        Err(error) => {
            log::debug(format_args!("module image: {error}"));
            Err(CUresult::CUDA_ERROR_INVALID_IMAGE)
        }
    }
}

/// Reads an image from a file; PTX gets the NUL that `cuModuleLoadData` requires.
pub(super) fn read_file(name: Text<'_>) -> Result<Vec<u8>, CUresult> {
    let name = OsStr::from_bytes(name.get()?.to_bytes());
    std::fs::read(name).map_err(|error| {
        log::debug(format_args!("{}: {error}", name.display()));
        CUresult::CUDA_ERROR_FILE_NOT_FOUND
    })
}

fn load_module(module: Out<'_, CUmodule>, image: &RawImage<'_>, jit: &Jit) -> Done {
    module.check()?;
    let (driver, context) = (driver()?, current_context()?);
    let number = mint_library();
    let card = driver.load_found(number, image, jit)?;
    let library = driver.libraries.insert(number, card, None, Some(context))?;
    module.put(CUmodule(HandleKind::Module.tag(library.number) as usize))
}

pub(crate) fn cuModuleLoad(module: Out<'_, CUmodule>, name: Text<'_>) -> Done {
    driver()?;
    load_module(module, &RawImage::whole(&read_file(name)?), &Jit::default())
}

pub(crate) unsafe fn cuModuleLoadData(module: Out<'_, CUmodule>, image: *const c_void) -> Done {
    driver()?;
    // SAFETY: NULL or an image: the driver API asks it of its callers.
    let image = unsafe { find_image(image)? };
    load_module(module, &image, &Jit::default())
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    module: Out<'_, CUmodule>,
    image: *const c_void,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Done {
    driver()?;
    // SAFETY: NULL or an image, and `count` options with their values: the driver API asks it of
    // its callers.
    let (image, jit) = unsafe { (find_image(image)?, Jit::read(count, options, values)?) };
    load_module(module, &image, &jit)
}

pub(crate) unsafe fn cuModuleLoadFatBinary(
    module: Out<'_, CUmodule>,
    image: *const c_void,
) -> Done {
    // SAFETY: a fat binary is an image too.
    unsafe { cuModuleLoadData(module, image) }
}

pub(crate) fn cuModuleUnload(module: CUmodule) -> Done {
    let driver = driver()?;
    let library = driver.libraries.get(module.0)?;
    driver.unload(&library)
}

/// Returns lazy: kernels are loaded at their first use, on the server's driver as on any.
pub(crate) fn cuModuleGetLoadingMode(mode: Out<'_, u32>) -> Done {
    driver()?;
    mode.put(CU_MODULE_LAZY_LOADING)
}

fn kernel_handle(library: usize, name: Text<'_>) -> Result<usize, CUresult> {
    let name = name.get()?.to_bytes();
    let find = |driver: &Driver| driver.libraries.get(library)?.kernel(name);
    let kernel = find(driver()?).or_else(|error| {
        // A library's kernel has one handle at all servers that have it.
        let found = drivers().iter().find_map(|driver| find(driver).ok());
        found.ok_or(error)
    });
    kernel.map(|k| k.handle())
}

pub(crate) fn cuModuleGetFunction(
    function: Out<'_, CUfunction>,
    module: CUmodule,
    name: Text<'_>,
) -> Done {
    let driver = driver()?;
    let handle = kernel_handle(module.0, name)?;
    // The kernel is loaded now, as by a local driver. Loading it at its first use would wait for
    // running kernels, which may be waiting for the program.
    let kernel = driver.libraries.kernel(CUfunction(handle))?;
    if !kernel.requested.swap(true, Ordering::AcqRel) {
        driver.submit(&messages::CuFuncLoad {
            function: kernel.wire,
        })?;
    }
    function.put(CUfunction(handle))
}

pub(crate) fn cuLibraryGetKernel(
    kernel: Out<'_, CUkernel>,
    library: CUlibrary,
    name: Text<'_>,
) -> Done {
    kernel.put(CUkernel(kernel_handle(library.0, name)?))
}

pub(crate) fn cuModuleGetFunctionCount(count: Out<'_, u32>, module: CUmodule) -> Done {
    count.put(driver()?.libraries.get(module.0)?.kernels.len() as u32)
}

pub(crate) fn cuLibraryGetKernelCount(count: Out<'_, u32>, library: CUlibrary) -> Done {
    count.put(driver()?.libraries.get(library.0)?.kernels.len() as u32)
}

/// # Safety
/// `out` must be NULL or have room for `room` handles.
unsafe fn enumerate(out: *mut usize, room: u32, library: usize) -> Done {
    let library = driver()?.libraries.get(library)?;
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    for (index, kernel) in library.kernels.iter().take(room as usize).enumerate() {
        // SAFETY: not NULL, and `index` is below `room`.
        unsafe { out.add(index).write(kernel.handle()) };
    }
    Ok(())
}

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    functions: *mut CUfunction,
    room: u32,
    module: CUmodule,
) -> Done {
    // SAFETY: the program's array has room for `room` handles, which are numbers.
    unsafe { enumerate(functions.cast(), room, module.0) }
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    room: u32,
    library: CUlibrary,
) -> Done {
    // SAFETY: the program's array has room for `room` handles, which are numbers.
    unsafe { enumerate(kernels.cast(), room, library.0) }
}

fn put_global(
    address: Out<'_, CUdeviceptr>,
    bytes: Out<'_, usize>,
    library: usize,
    name: Text<'_>,
    is_managed: bool,
) -> Done {
    let driver = driver()?;
    let library = driver.libraries.get(library)?;
    let found = driver.global(&library, name.get()?.to_bytes())?;
    if is_managed && !found.managed {
        return Err(CUresult::CUDA_ERROR_NOT_FOUND);
    }
    address.put_optional(found.address);
    bytes.put_optional(found.bytes as usize);
    Ok(())
}

pub(crate) fn cuModuleGetGlobal_v2(
    address: Out<'_, CUdeviceptr>,
    bytes: Out<'_, usize>,
    module: CUmodule,
    name: Text<'_>,
) -> Done {
    put_global(address, bytes, module.0, name, false)
}

pub(crate) fn cuLibraryGetGlobal(
    address: Out<'_, CUdeviceptr>,
    bytes: Out<'_, usize>,
    library: CUlibrary,
    name: Text<'_>,
) -> Done {
    put_global(address, bytes, library.0, name, false)
}

pub(crate) fn cuLibraryGetManaged(
    address: Out<'_, CUdeviceptr>,
    bytes: Out<'_, usize>,
    library: CUlibrary,
    name: Text<'_>,
) -> Done {
    put_global(address, bytes, library.0, name, true)
}

pub(crate) fn cuLibraryGetModule(module: Out<'_, CUmodule>, library: CUlibrary) -> Done {
    let library = driver()?.libraries.get(library.0)?;
    module.put(CUmodule(HandleKind::Module.tag(library.number) as usize))
}

fn load_library(library: Out<'_, CUlibrary>, image: &RawImage<'_>, jit: &Jit) -> Done {
    library.check()?;
    let here = driver()?.number;
    let number = mint_library();
    // Its kernels may be used on every device, so all servers get it, under one number. A server
    // that cannot use it says so when it is used there.
    let loaded = drivers().iter().map(|driver| {
        let _selected = on(driver, driver.contexts.any_made());
        (driver, driver.load_found(number, image, jit))
    });
    let (loaded, failed): (Vec<_>, Vec<_>) = loaded.partition(|(_, card)| card.is_ok());
    if loaded.is_empty() {
        let mut failed = failed.into_iter();
        let own = failed.find(|(driver, _)| driver.number == here);
        let error = own.and_then(|(_, card)| card.err());
        return Err(error.unwrap_or(CUresult::CUDA_ERROR_UNKNOWN));
    }
    for (driver, card) in &failed {
        let error = card.as_ref().err().copied();
        driver
            .libraries
            .fail(number, error.unwrap_or(CUresult::CUDA_ERROR_UNKNOWN));
    }
    let loaded: Vec<(&Driver, LibraryCard)> = loaded
        .into_iter()
        .filter_map(|(driver, card)| Some((driver, card.ok()?)))
        .collect();
    let places = are_several().then(|| places_of(loaded.iter().map(|(_, card)| card)));
    for (driver, card) in loaded {
        driver
            .libraries
            .insert(number, card, places.as_ref(), None)?;
    }
    library.put(CUlibrary(HandleKind::Library.tag(number) as usize))
}

/// Gives each kernel that some server has a place, which is the same for all servers.
fn places_of<'c>(cards: impl Iterator<Item = &'c LibraryCard>) -> Places {
    let mut places = Places::default();
    for kernel in cards.flat_map(|card| &card.kernels) {
        let next = places.len();
        places.entry(kernel.name.clone()).or_insert(next);
    }
    places
}

pub(crate) unsafe fn cuLibraryLoadData(
    library: Out<'_, CUlibrary>,
    image: *const c_void,
    jit_options: *mut u32,
    jit_values: *mut *mut c_void,
    jit_count: u32,
    _library_options: *mut u32,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> Done {
    driver()?;
    // The library options say where the image lies and whether it may go away; it is copied, so
    // neither matters.
    // SAFETY: NULL or an image, and `jit_count` options with their values: the driver API asks it
    // of its callers.
    let (image, jit) = unsafe {
        let image = find_image(image)?;
        (image, Jit::read(jit_count, jit_options, jit_values)?)
    };
    load_library(library, &image, &jit)
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    library: Out<'_, CUlibrary>,
    name: Text<'_>,
    jit_options: *mut u32,
    jit_values: *mut *mut c_void,
    jit_count: u32,
    _library_options: *mut u32,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> Done {
    driver()?;
    let image = read_file(name)?;
    // SAFETY: `jit_count` options with their values: the driver API asks it of its callers.
    let jit = unsafe { Jit::read(jit_count, jit_options, jit_values)? };
    load_library(library, &RawImage::whole(&image), &jit)
}

pub(crate) fn cuLibraryUnload(library: CUlibrary) -> Done {
    driver()?;
    let mut done = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    for driver in drivers() {
        if let Ok(own) = driver.libraries.get(library.0) {
            let _selected = on(driver, driver.contexts.any_made());
            done = driver.unload(&own);
        }
    }
    done
}
