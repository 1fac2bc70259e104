//! Memory of GPUs: an adapter reads and writes it by copies of the driver that the program has
//! loaded, in a stream that waits for no other.
//!
//! Each copy looks first whether the memory is still the allocation that was registered.

use std::{
    collections::HashMap,
    ffi::{c_int, c_uint, c_void},
    ptr::{self, NonNull},
    sync::{Arc, LazyLock, OnceLock, Weak},
};

use libloading::os::unix::{Library, RTLD_NOW};
use outboard_net::{Distant, Gone};
use parking_lot::Mutex;

const DRIVER: &str = "libcuda.so.1";
/// Finds the library only if the program has it.
const NOT_LOADED: c_int = libc::RTLD_NOLOAD;

/// The symbol that Outboard's driver has, and no other.
const OUR_MARK: &[u8] = b"outboard_client\0";
const PORTABLE_MAPPED: c_uint = 3;
const SUCCESS: c_int = 0;
/// The status of copies that are not begun: CUDA_ERROR_INVALID_VALUE.
const NOT_COPIED: c_int = 1;
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const BUFFER_ID: c_uint = 7;
const IS_MANAGED: c_uint = 8;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;
const MAPPING_SIZE: c_uint = 18;
const MAPPING_START: c_uint = 19;
const BLOCK_ID: c_uint = 20;
const TYPE_DEVICE: u32 = 2;
const STREAM_NON_BLOCKING: c_uint = 1;
/// A thread's captures of streams do not forbid these copies.
const CAPTURE_RELAXED: c_int = 2;

/// Programs register whole pages around an allocation, which begins and ends anywhere.
const PAGE_BYTES: u64 = 4096;
/// Allocations begin at multiples of this.
const ALIGNMENT: u64 = 256;
/// Allocations of one registration.
const PIECES_MAX: usize = 65_536;

/// Declares the functions of the driver that are called here.
macro_rules! driver {
    ($($field:ident: $symbol:literal ($($argument:ty),*);)*) => {
        struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            library: Library,
        }

        impl Driver {
            fn load() -> Option<Driver> {
                // SAFETY: it is loaded already, or not loaded now.
                let library = unsafe { Library::open(Some(DRIVER), RTLD_NOW | NOT_LOADED) }.ok()?;
                // SAFETY: functions of the driver's interface have these types.
                unsafe {
                    Some(Driver {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes()).ok()?,)*
                        library,
                    })
                }
            }
        }
    };
}

type Handle = *mut c_void;

driver! {
    attribute: "cuPointerGetAttribute" (*mut c_void, c_uint, u64);
    retain: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    push: "cuCtxPushCurrent_v2" (Handle);
    pop: "cuCtxPopCurrent_v2" (*mut Handle);
    exchange_capture: "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    create: "cuStreamCreate" (*mut Handle, c_uint);
    destroy: "cuStreamDestroy_v2" (Handle);
    synchronise: "cuStreamSynchronize" (Handle);
    to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    from_host: "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    pin: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
}

/// Returns the driver, once the program has loaded it.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    if DRIVER.get().is_none() {
        let _ = DRIVER.set(Driver::load()?);
    }
    DRIVER.get()
}

impl Driver {
    /// Returns an attribute of a pointer; `None` if the driver does not know the pointer.
    fn of<T: Default>(&self, address: u64, which: c_uint) -> Option<T> {
        let mut value = T::default();
        // SAFETY: room for the attribute, whose type the caller gives.
        let status = unsafe { (self.attribute)((&raw mut value).cast(), which, address) };
        (status == SUCCESS).then_some(value)
    }

    /// Returns the device's allocation that has this address.
    fn piece(&self, address: u64) -> Option<Piece> {
        if self.of::<u32>(address, MEMORY_TYPE)? != TYPE_DEVICE
            || self.of::<u32>(address, IS_MANAGED).unwrap_or(0) != 0
        {
            return None;
        }
        let range = |start, size| {
            let start: u64 = self.of(address, start)?;
            let end = start.checked_add(self.of(address, size)?)?;
            (start..end).contains(&address).then_some((start, end))
        };
        let allocated = range(RANGE_START, RANGE_SIZE);
        let (start, end) = allocated.or_else(|| range(MAPPING_START, MAPPING_SIZE))?;
        let id = self.of(address, BUFFER_ID);
        Some(Piece {
            start,
            end,
            id: id.or_else(|| self.of(address, BLOCK_ID)).unwrap_or(0),
        })
    }

    /// Returns the context of memory, or that of its device for memory that has none.
    fn context_of(&self, address: u64) -> Option<usize> {
        if let Some(context) = self.of::<usize>(address, CONTEXT).filter(|one| *one != 0) {
            return Some(context);
        }
        let device = self.of::<u32>(address, DEVICE_ORDINAL)?;
        let mut context = ptr::null_mut();
        // SAFETY: room for a context, which is kept until the program ends.
        let status = unsafe { (self.retain)(&raw mut context, device as c_int) };
        (status == SUCCESS).then_some(context as usize)
    }
}

/// A context, and the stream of copies in it. Handles are numbers here.
#[derive(Debug)]
struct Gpu {
    context: usize,
    stream: usize,
}

impl Gpu {
    /// Returns what all registrations of a context share.
    fn of(driver: &Driver, context: usize) -> Option<Arc<Gpu>> {
        static GPUS: LazyLock<Mutex<HashMap<usize, Weak<Gpu>>>> = LazyLock::new(Mutex::default);
        let mut gpus = GPUS.lock();
        if let Some(gpu) = gpus.get(&context).and_then(Weak::upgrade) {
            return Some(gpu);
        }
        let mut stream = ptr::null_mut();
        within(driver, context, || {
            // SAFETY: room for a stream.
            unsafe { (driver.create)(&raw mut stream, STREAM_NON_BLOCKING) }
        })
        .ok()?;
        let stream = stream as usize;
        let gpu = Arc::new(Gpu { context, stream });
        gpus.insert(context, Arc::downgrade(&gpu));
        Some(gpu)
    }

    /// Starts a copy, and waits for it.
    fn copy(
        &self,
        driver: &Driver,
        start: impl FnOnce(Handle) -> Result<c_int, Gone>,
    ) -> Result<(), Gone> {
        let stream = self.stream as Handle;
        within(driver, self.context, || match start(stream) {
            // SAFETY: the stream is this one's.
            Ok(SUCCESS) => unsafe { (driver.synchronise)(stream) },
            Ok(failed) => failed,
            Err(Gone) => NOT_COPIED,
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Some(driver) = driver() {
            let stream = self.stream as Handle;
            // SAFETY: the stream is destroyed once; if its context is gone, so is the stream.
            let _ = within(driver, self.context, || unsafe { (driver.destroy)(stream) });
        }
    }
}

/// Calls the driver in a context, and leaves the thread as it was.
fn within(driver: &Driver, context: usize, call: impl FnOnce() -> c_int) -> Result<(), Gone> {
    let (mut mode, mut popped) = (CAPTURE_RELAXED, ptr::null_mut());
    // SAFETY: the driver refuses a context that is gone; both exchanges have room.
    unsafe {
        if (driver.push)(context as Handle) != SUCCESS {
            return Err(Gone);
        }
        let is_exchanged = (driver.exchange_capture)(&raw mut mode) == SUCCESS;
        let status = call();
        if is_exchanged {
            (driver.exchange_capture)(&raw mut mode);
        }
        (driver.pop)(&raw mut popped);
        match status {
            SUCCESS => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// An allocation, or the part of one that is mapped in one piece. Numbers are not used again.
#[derive(Debug, PartialEq)]
struct Piece {
    start: u64,
    end: u64,
    id: u64,
}

/// Registered memory of a GPU.
#[derive(Debug)]
struct Memory {
    base: u64,
    /// In ascending order.
    pieces: Vec<Piece>,
    gpu: Arc<Gpu>,
}

/// Returns true if the program has a driver.
pub(crate) fn is_there() -> bool {
    driver().is_some()
}

/// Allocates pinned memory of Outboard's own driver, in the current context; `None` of another.
pub(crate) fn pinned(bytes: usize) -> Option<NonNull<u8>> {
    let driver = driver()?;
    // SAFETY: the symbol is looked up, not used.
    unsafe { driver.library.get::<*const ()>(OUR_MARK) }.ok()?;
    let mut at = ptr::null_mut();
    // SAFETY: room for an address.
    let status = unsafe { (driver.pin)(&raw mut at, bytes, PORTABLE_MAPPED) };
    let at = NonNull::new(at.cast::<u8>()).filter(|_| status == SUCCESS)?;
    // SAFETY: as many bytes, which nobody else has yet.
    unsafe { at.write_bytes(0, bytes) };
    Some(at)
}

/// Takes memory of a GPU; `None` if these bytes are not all of a GPU's. Before the first and after
/// the last allocation there may be less than a page that is nobody's.
pub(crate) fn memory(address: u64, bytes: usize) -> Option<Arc<dyn Distant>> {
    let driver = driver()?;
    let end = address.checked_add(bytes as u64)?;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut next = address;
    while next < end {
        match driver.piece(next) {
            Some(piece) => {
                next = piece.end;
                pieces.push(piece);
            }
            None if pieces.is_empty() && next - address < PAGE_BYTES => {
                next = (next + 1).next_multiple_of(ALIGNMENT);
            }
            None if !pieces.is_empty() && end - next < PAGE_BYTES => break,
            None => return None,
        }
        if pieces.len() > PIECES_MAX {
            return None;
        }
    }
    let context = driver.context_of(pieces.first()?.start)?;
    Some(Arc::new(Memory {
        base: address,
        pieces,
        gpu: Gpu::of(driver, context)?,
    }))
}

impl Memory {
    /// Returns the address of bytes that are still those that were registered.
    fn address_of(&self, driver: &Driver, offset: usize, bytes: usize) -> Result<u64, Gone> {
        let address = self.base + offset as u64;
        let (mut next, end) = (address, address + bytes as u64);
        let first = self.pieces.partition_point(|piece| piece.end <= next);
        for piece in &self.pieces[first..] {
            if next >= end {
                break;
            }
            let found = driver.piece(next).ok_or(Gone)?;
            // A range may grow, by memory that is mapped behind it.
            let is_same = match piece.id {
                0 => found == *piece,
                id => found.id == id,
            };
            if !is_same {
                return Err(Gone);
            }
            next = piece.end;
        }
        if next < end { Err(Gone) } else { Ok(address) }
    }
}

impl Distant for Memory {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone> {
        let driver = driver().ok_or(Gone)?;
        self.gpu.copy(driver, |stream| {
            let from = self.address_of(driver, offset, into.len())?;
            // SAFETY: `into` has the room until the copy is over, which is waited for.
            Ok(unsafe { (driver.to_host)(into.as_mut_ptr().cast(), from, into.len(), stream) })
        })
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        let driver = driver().ok_or(Gone)?;
        self.gpu.copy(driver, |stream| {
            let to = self.address_of(driver, offset, bytes.len())?;
            // SAFETY: `bytes` stay until the copy is over, which is waited for.
            Ok(unsafe { (driver.from_host)(to, bytes.as_ptr().cast(), bytes.len(), stream) })
        })
    }
}
