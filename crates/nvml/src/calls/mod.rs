//! The served calls, each under its C name. A call looks its device up in the snapshot, writes the
//! result to the caller's pointer, and returns `NVML_ERROR_NOT_SUPPORTED` for a value that the
//! snapshot lacks.
#![allow(non_snake_case)]

mod answers;
mod devices;
mod events;
mod library;
mod memory;
mod pci;
mod peers;
mod private;
mod processes;
mod sensors;

use std::{ffi::c_char, marker::PhantomData, sync::Arc};

use outboard_api::argument::{self, Argument};
use outboard_wire::doc::NvmlDevice;

pub(crate) use self::{
    answers::*, devices::*, events::*, library::*, memory::*, pci::*, peers::*, processes::*,
    sensors::*,
};
use crate::{
    session::{self, Age, Snapshot},
    types::{Result, nvmlDevice_t, nvmlReturn_t},
};

// Pointers of the program's, as the entry points give them to the served calls.
pub(crate) type Out<'c, T> = argument::Out<'c, T, nvmlReturn_t>;
pub(crate) type InOut<'c, T> = argument::InOut<'c, T, nvmlReturn_t>;
type In<'c, T> = argument::In<'c, T, nvmlReturn_t>;
type Text<'c> = argument::Text<'c, nvmlReturn_t>;

/// The handle of the first device. Each further handle is one stride higher; none is null or an
/// address of ours.
const HANDLE_FIRST: usize = 0x0b0a_0000;
const HANDLE_STRIDE: usize = 16;

/// A device of a snapshot.
pub(crate) struct Device {
    snapshot: Arc<Snapshot>,
    index: usize,
}

impl Device {
    pub(crate) fn find(handle: nvmlDevice_t, age: Age) -> Result<Device> {
        let snapshot = session::snapshot(age)?;
        let index = index_of(handle).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
        match snapshot.content.devices.get(index) {
            Some(_) => Ok(Device { snapshot, index }),
            None => Err(nvmlReturn_t::INVALID_ARGUMENT),
        }
    }

    pub(crate) fn get(&self) -> Result<&NvmlDevice> {
        self.snapshot
            .content
            .devices
            .get(self.index)
            .ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }
}

fn handle_of(index: usize) -> nvmlDevice_t {
    nvmlDevice_t(HANDLE_FIRST + index * HANDLE_STRIDE)
}

fn index_of(handle: nvmlDevice_t) -> Option<usize> {
    let offset = handle.0.checked_sub(HANDLE_FIRST)?;
    (offset % HANDLE_STRIDE == 0).then_some(offset / HANDLE_STRIDE)
}

/// Turns a value that the driver refused into `NVML_ERROR_NOT_SUPPORTED`.
fn known<T>(value: Option<T>) -> Result<T> {
    value.ok_or(nvmlReturn_t::NOT_SUPPORTED)
}

/// Refuses a null array, before the server is asked.
fn check<T>(out: *mut T) -> Result {
    match out.is_null() {
        true => Err(nvmlReturn_t::INVALID_ARGUMENT),
        false => Ok(()),
    }
}

/// A record that begins with its version: null, or as long as its version says, and writable.
pub(crate) struct Versioned<'c, T> {
    record: *mut T,
    call: PhantomData<&'c T>,
}

impl<T> Argument<*mut T> for Versioned<'_, T> {
    unsafe fn from_c(record: *mut T) -> Self {
        Versioned {
            record,
            call: PhantomData,
        }
    }
}

impl<'c, T> Versioned<'c, T> {
    fn check(&self) -> Result {
        check(self.record)
    }

    /// Returns the record if it has this version, which must be `T`'s: [`struct_version`] has the
    /// length of `T` in it.
    fn of(&self, version: u32) -> Result<InOut<'c, T>> {
        self.check()?;
        // SAFETY: not null, and every version of a record begins with its version.
        let given = unsafe { self.record.cast::<u32>().read_unaligned() };
        match given == version {
            // SAFETY: the record has the version of `T`, so it is as long.
            true => Ok(unsafe { InOut::from_c(self.record) }),
            false => Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH),
        }
    }

    /// Takes the record for one of another version.
    ///
    /// # Safety
    /// A record with the version of `U` must be a `U`.
    unsafe fn cast<U>(&self) -> Versioned<'c, U> {
        Versioned {
            record: self.record.cast(),
            call: PhantomData,
        }
    }
}

/// Writes `text` and a NUL.
///
/// # Safety
/// `out` must be null or have room for `length` bytes.
unsafe fn put_text(out: *mut c_char, length: usize, text: &str) -> Result {
    check(out)?;
    let bytes = without_nul(text);
    if bytes.len() >= length {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its NUL are `length` bytes at most, which the caller promised.
    unsafe {
        out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
        out.add(bytes.len()).write(0);
    }
    Ok(())
}

/// Copies `text` and a NUL into an array, cut off if it does not fit.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out
        .iter_mut()
        .zip(without_nul(text))
        .take(N.saturating_sub(1))
    {
        *to = *from as c_char;
    }
    out
}

/// Returns the server's text up to its first NUL, where C sees its end.
pub(crate) fn without_nul(text: &str) -> &[u8] {
    text.as_bytes()
        .split(|b| *b == 0)
        .next()
        .unwrap_or_default()
}
