//! Modules and libraries (one kind of object here), their kernels, and the layout of each kernel's
//! parameter buffer.

use std::{
    collections::HashMap,
    ffi::CString,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice, CUfunction},
    enums::*,
};
use outboard_wire::{
    doc::{LaunchBounds, LibraryCard},
    messages,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::{Driver, HandleKind, slots::Slots};

/// Length of the longest parameter buffer of any device, in bytes.
pub(crate) const PARAM_BYTES_MAX: usize = 32_764;
/// Most kernels of one library; the index shares a word with the library's number.
const KERNELS_MAX: usize = 1 << 31;

/// The places of kernels in the handles of one library, by their names.
pub(crate) type Places = FxHashMap<String, usize>;

/// Context and name of a variable.
type GlobalKey = (usize, Vec<u8>);

/// A variable of a library.
#[derive(Clone, Copy)]
pub(crate) struct Global {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// `__managed__`
    pub(crate) managed: bool,
}

pub(crate) struct Library {
    /// The number in messages.
    pub(crate) number: u64,
    pub(crate) kernels: Vec<&'static Kernel>,
    by_name: HashMap<&'static [u8], usize>,
    /// The variables requested so far.
    pub(crate) globals: Mutex<HashMap<GlobalKey, Global>>,
    /// Context of a module, loaded by `cuModuleLoad*`; `None` for a library.
    pub(crate) context: Option<CUcontext>,
}

/// A kernel. It is never freed: programs keep `CUfunction`s longer than their modules, and must
/// then get an error.
pub(crate) struct Kernel {
    /// The number in messages: the library's number and the kernel's index.
    pub(crate) wire: u64,
    /// The number in handles: the library's number and the kernel's place.
    number: u64,
    pub(crate) library: u64,
    /// Context of a module's function, which runs in no other; `None` of a library's kernel, which
    /// runs in its stream's.
    pub(crate) context: Option<CUcontext>,
    pub(crate) name: CString,
    /// Offset and size of each parameter, in bytes.
    pub(crate) params: Vec<(u32, u32)>,
    pub(crate) param_bytes: u32,
    /// Some bytes of the parameter buffer belong to no parameter.
    pub(crate) has_gaps: bool,
    /// Each aligned word of the parameter buffer that parameters fill is one parameter.
    pub(crate) has_plain_words: bool,
    /// Launch sizes that are certain to work, without the attributes.
    pub(crate) bounds: LaunchBounds,
    /// An attribute was set.
    is_altered: AtomicBool,
    pub(crate) unloaded: AtomicBool,
    /// The server has been asked to load its code.
    pub(crate) requested: AtomicBool,
    attributes: OnceLock<Vec<i32>>,
    /// Attributes set by `cuFuncSetAttribute`, which replace those of the image.
    overrides: RwLock<FxHashMap<(CUdevice, u32), i32>>,
    /// Answers to occupancy queries, which depend only on the kernel and the query.
    pub(crate) occupancy: Mutex<HashMap<OccupancyKey, u64>>,
}

/// An occupancy query: number, block size, shared bytes, flags, configuration.
pub(crate) type OccupancyKey = (u32, i32, u64, u32, Vec<u8>);

#[derive(Default)]
pub(crate) struct Libraries {
    by_number: RwLock<FxHashMap<u64, Arc<Library>>>,
    /// By the library's number, then by the kernel's place in its handle.
    kernels: Slots<Box<[Option<&'static Kernel>]>>,
    /// Why this server has not loaded a library that another has.
    failed: RwLock<FxHashMap<u64, CUresult>>,
}

/// The last number of a library. A library has one number at all servers.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of the next library.
pub(crate) fn mint_library() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Libraries {
    /// Returns the context of the module that a module's or function's handle names.
    pub(crate) fn context_of(&self, handle: u64) -> Option<CUcontext> {
        let by_number = self.by_number.read();
        let library = by_number.get(&library_of(handle)?)?;
        library.context
    }

    /// Notes why this server has not loaded a library.
    pub(crate) fn fail(&self, number: u64, why: CUresult) {
        self.failed.write().insert(number, why);
    }

    /// Returns the error for a handle that this server does not know.
    #[cold]
    fn unknown(&self, handle: u64) -> CUresult {
        let why = library_of(handle).and_then(|number| self.failed.read().get(&number).copied());
        why.unwrap_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Adds a library. `places` are those of its kernels in their handles, if other servers have
    /// the library too; otherwise the card's order counts.
    pub(crate) fn insert(
        &self,
        number: u64,
        card: LibraryCard,
        places: Option<&Places>,
        context: Option<CUcontext>,
    ) -> Result<Arc<Library>, CUresult> {
        if card.kernels.len() >= KERNELS_MAX {
            return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
        }
        let mut kernels: Vec<&'static Kernel> = Vec::with_capacity(card.kernels.len());
        for (index, kernel) in card.kernels.into_iter().enumerate() {
            let param_bytes = kernel
                .params
                .iter()
                .map(|(offset, size)| offset.saturating_add(*size))
                .max()
                .unwrap_or(0);
            if param_bytes as usize > PARAM_BYTES_MAX {
                return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
            }
            let given: u64 = kernel.params.iter().map(|(_, size)| u64::from(*size)).sum();
            let place = places.and_then(|places| places.get(&kernel.name).copied());
            let has_plain_words = has_plain_words(&kernel.params, param_bytes);
            kernels.push(Box::leak(Box::new(Kernel {
                wire: number << 32 | index as u64,
                number: number << 32 | place.unwrap_or(index) as u64,
                library: number,
                context,
                name: CString::new(kernel.name).map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?,
                params: kernel.params,
                param_bytes,
                // Overlapping parameters could hide a gap; no compiler creates them.
                has_gaps: given != u64::from(param_bytes),
                has_plain_words,
                bounds: kernel.bounds,
                is_altered: AtomicBool::new(false),
                unloaded: AtomicBool::new(false),
                requested: AtomicBool::new(false),
                attributes: OnceLock::new(),
                overrides: RwLock::default(),
                occupancy: Mutex::default(),
            })));
        }
        let by_name = kernels
            .iter()
            .enumerate()
            .map(|(index, k)| (k.name.to_bytes(), index))
            .collect();
        let slot = u32::try_from(number).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let mut by_place = vec![None; places.map_or(kernels.len(), FxHashMap::len)];
        for kernel in &kernels {
            if let Some(place) = by_place.get_mut(kernel.number as u32 as usize) {
                *place = Some(*kernel);
            }
        }
        self.kernels.set(slot, by_place.into());
        let library = Arc::new(Library {
            number,
            kernels,
            by_name,
            globals: Mutex::default(),
            context,
        });
        self.by_number.write().insert(number, library.clone());
        Ok(library)
    }

    /// Returns a library by a handle of kind `Library` or `Module`.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Library>, CUresult> {
        let number = HandleKind::Library
            .number(handle as u64)
            .or_else(|| HandleKind::Module.number(handle as u64));
        let library = number.and_then(|n| self.by_number.read().get(&n).cloned());
        library.ok_or_else(|| self.unknown(handle as u64))
    }

    /// Returns a kernel by its number in messages.
    pub(crate) fn by_wire(&self, wire: u64) -> Result<&'static Kernel, CUresult> {
        let by_number = self.by_number.read();
        let library = by_number.get(&(wire >> 32));
        library
            .and_then(|library| library.kernels.get(wire as u32 as usize).copied())
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.read().is_empty()
    }

    pub(crate) fn remove(&self, library: &Library) {
        self.by_number.write().remove(&library.number);
        for kernel in &library.kernels {
            kernel.unloaded.store(true, Ordering::Release);
        }
    }

    /// Returns the modules of a context that ends.
    pub(crate) fn of_context(&self, context: CUcontext) -> Vec<Arc<Library>> {
        self.by_number
            .read()
            .values()
            .filter(|l| l.context == Some(context))
            .cloned()
            .collect()
    }

    /// Returns a kernel by a `CUfunction` or a `CUkernel`: the driver accepts one as the other.
    #[inline]
    pub(crate) fn kernel(&self, function: CUfunction) -> Result<&'static Kernel, CUresult> {
        let known = HandleKind::Kernel
            .number(function.0 as u64)
            .and_then(|wire| {
                let library = u32::try_from(wire >> 32).ok()?;
                *self.kernels.get(library)?.get(wire as u32 as usize)?
            });
        match known {
            Some(kernel) if !kernel.unloaded.load(Ordering::Acquire) => Ok(kernel),
            _ => Err(self.unknown(function.0 as u64)),
        }
    }
}

/// Returns the number of the library that a handle of a library, module or kernel names.
/// Returns whether each aligned word of eight bytes that parameters fill is one parameter, and each
/// parameter of eight bytes is such a word: then an address in them is an argument by itself.
pub(crate) fn has_plain_words(params: &[(u32, u32)], param_bytes: u32) -> bool {
    let is_word = |(offset, size): &(u32, u32)| *size == 8 && offset.is_multiple_of(8);
    let is_plain = |start: u32| {
        let filled = |(offset, size): &(u32, u32)| {
            let end = (start + 8).min(offset + size);
            end.saturating_sub(start.max(*offset))
        };
        let is_filled = params.iter().map(filled).sum::<u32>() >= 8;
        !is_filled || params.iter().any(|one| one.0 == start && is_word(one))
    };
    params.iter().all(|one| one.1 != 8 || is_word(one))
        && (0..param_bytes / 8).all(|word| is_plain(8 * word))
}

fn library_of(handle: u64) -> Option<u64> {
    let kernels = HandleKind::Kernel.number(handle).map(|number| number >> 32);
    kernels
        .or_else(|| HandleKind::Library.number(handle))
        .or_else(|| HandleKind::Module.number(handle))
}

impl Library {
    pub(crate) fn kernel(&self, name: &[u8]) -> Result<&'static Kernel, CUresult> {
        self.by_name
            .get(name)
            .map(|i| self.kernels[*i])
            .ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }
}

impl Kernel {
    pub(crate) fn handle(&self) -> usize {
        HandleKind::Kernel.tag(self.number) as usize
    }

    /// Returns an attribute. The server is asked once for all attributes of the kernel.
    pub(crate) fn attribute(&self, driver: &Driver, attribute: u32) -> Result<i32, CUresult> {
        self.attribute_on(driver, current_device(driver), attribute)
    }

    /// Returns an attribute on a device; each device has its own settings.
    pub(crate) fn attribute_on(
        &self,
        driver: &Driver,
        device: CUdevice,
        attribute: u32,
    ) -> Result<i32, CUresult> {
        if let Some(value) = self.overrides.read().get(&(device, attribute)) {
            return Ok(*value);
        }
        let values = match self.attributes.get() {
            Some(values) => values,
            None => {
                let values =
                    driver.call(&messages::KernelAttributes { kernel: self.wire }, |reply| {
                        reply
                            .values
                            .as_chunks::<4>()
                            .0
                            .iter()
                            .map(|v| i32::from_le_bytes(*v))
                            .collect::<Vec<_>>()
                    })?;
                self.attributes.get_or_init(|| values)
            }
        };
        values
            .get(attribute as usize)
            .copied()
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns whether a launch certainly fits, without the attributes. To ask for them would wait
    /// until the server has loaded the kernel, after all work sent before.
    #[inline]
    pub(crate) fn surely_takes(&self, threads: u64, dynamic_shared_bytes: u32) -> bool {
        threads <= u64::from(self.bounds.threads)
            && (dynamic_shared_bytes == 0
                || dynamic_shared_bytes <= self.bounds.dynamic_shared_bytes
                    && !self.is_altered.load(Ordering::Acquire))
    }

    /// Sets an attribute on the current device.
    pub(crate) fn set_attribute(
        &self,
        driver: &Driver,
        attribute: u32,
        value: i32,
    ) -> Result<(), CUresult> {
        self.set_attribute_on(driver, current_device(driver), attribute, value)
    }

    /// Sets an attribute on a device, here and on the server. Errors are found here.
    pub(crate) fn set_attribute_on(
        &self,
        driver: &Driver,
        device: CUdevice,
        attribute: u32,
        value: i32,
    ) -> Result<(), CUresult> {
        let settable = [
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        ];
        if !settable.contains(&attribute) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let most = driver.attribute(
                device,
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            );
            let used = self.attribute(driver, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
            if value < 0 || i64::from(value) + i64::from(used) > i64::from(most) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        // The value is unchanged: nothing to send.
        if self.overrides.read().get(&(device, attribute)) == Some(&value) {
            return Ok(());
        }
        let message = messages::KernelSetAttribute {
            kernel: self.wire,
            attribute,
            value,
        };
        match driver.contexts.current() {
            Ok(current) if current.device != device => {
                driver.submit_in(driver.context_of_device(device)?, &message)?;
            }
            _ => driver.submit(&message)?,
        }
        self.overrides.write().insert((device, attribute), value);
        self.is_altered.store(true, Ordering::Release);
        self.occupancy.lock().clear();
        Ok(())
    }
}
/// Returns the current context's device.
fn current_device(driver: &Driver) -> CUdevice {
    driver.contexts.current().map_or(0, |c| c.device)
}
