//! Managed memory: allocation, advice, prefetches, and their queries (cuda.h, "Unified
//! Addressing").

use std::{ffi::c_void, ops::Range};

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUdeviceptr, CUmemLocation, CUstream},
    enums::*,
};

use super::{Done, Out};
use crate::state::{Advice, Driver, Processor, driver};

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`, `CU_MEM_ATTACH_SINGLE`
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;
const ATTACH_SINGLE: u32 = 4;
/// `CU_DEVICE_CPU`, `CU_DEVICE_INVALID`
const DEVICE_CPU: CUdevice = -1;
const DEVICE_INVALID: CUdevice = -2;

/// `CUmem_advise`
const SET_READ_MOSTLY: u32 = 1;
const UNSET_READ_MOSTLY: u32 = 2;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;
const SET_ACCESSED_BY: u32 = 5;
const UNSET_ACCESSED_BY: u32 = 6;

/// `CUmem_range_attribute`
const READ_MOSTLY: u32 = 1;
const PREFERRED_LOCATION: u32 = 2;
const ACCESSED_BY: u32 = 3;
const LAST_PREFETCH_LOCATION: u32 = 4;
const PREFERRED_LOCATION_TYPE: u32 = 5;
const PREFERRED_LOCATION_ID: u32 = 6;
const LAST_PREFETCH_LOCATION_TYPE: u32 = 7;
const LAST_PREFETCH_LOCATION_ID: u32 = 8;

pub(crate) unsafe fn cuMemAllocManaged(
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    flags: u32,
) -> Done {
    let driver = driver()?;
    if address.is_null() || bytes == 0 || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let base = driver.allocate_managed(bytes as u64)?;
    address.put(base)
}

impl Driver {
    fn processor(&self, device: CUdevice) -> Result<Processor, CUresult> {
        if device == DEVICE_CPU {
            return Ok(Processor::Host);
        }
        self.card(device).map(|_| Processor::Device(device))
    }

    fn located(&self, location: CUmemLocation) -> Result<Processor, CUresult> {
        match location.kind {
            CU_MEM_LOCATION_TYPE_DEVICE if location.id >= 0 => self.processor(location.id),
            CU_MEM_LOCATION_TYPE_HOST => Ok(Processor::Host),
            CU_MEM_LOCATION_TYPE_HOST_NUMA if location.id >= 0 => Ok(Processor::Node(location.id)),
            CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Processor::Host),
            CU_MEM_LOCATION_TYPE_DEVICE => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Runs `then` on the advice for these bytes, which must lie in one managed allocation.
    fn with_advices<R>(
        &self,
        address: u64,
        bytes: u64,
        then: impl FnOnce(&crate::state::Advices, Range<u64>) -> R,
    ) -> Result<R, CUresult> {
        let host = self.host.read();
        let range = host
            .find(address)
            .filter(|range| bytes > 0 && bytes <= range.base + range.bytes - address)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let advices = range.advices().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let (from, to) = outboard_pages::pages_around(address, bytes);
        Ok(then(
            advices,
            from.max(range.base) - range.base..to - range.base,
        ))
    }

    fn advise(
        &self,
        address: u64,
        bytes: u64,
        advice: u32,
        to: Result<Processor, CUresult>,
    ) -> Done {
        // The processor is only checked for advice that names one.
        let change: Box<dyn Fn(&mut Advice)> = match advice {
            SET_READ_MOSTLY => Box::new(|a| a.is_read_mostly = true),
            UNSET_READ_MOSTLY => Box::new(|a| a.is_read_mostly = false),
            UNSET_PREFERRED_LOCATION => Box::new(|a| a.preferred = None),
            SET_PREFERRED_LOCATION => {
                let to = to?;
                Box::new(move |a| a.preferred = Some(to))
            }
            SET_ACCESSED_BY => {
                let to = to?;
                Box::new(move |a| {
                    if !a.accessed_by.contains(&to) {
                        a.accessed_by.push(to);
                    }
                })
            }
            UNSET_ACCESSED_BY => {
                let to = to?;
                Box::new(move |a| a.accessed_by.retain(|by| *by != to))
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        self.with_advices(address, bytes, |advices, at| advices.change(at, change))
    }

    fn prefetch(&self, address: u64, bytes: u64, to: Processor, stream: CUstream) -> Done {
        // It sends nothing, so a lost context is noticed here.
        let context = self.work_stream(stream)?.context();
        self.session.check_in(context)?;
        self.with_advices(address, bytes, |advices, at| {
            advices.change(at, |a| a.prefetched_to = Some(to));
        })
    }
}

pub(crate) unsafe fn cuMemAdvise(
    address: CUdeviceptr,
    bytes: usize,
    advice: u32,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.advise(address, bytes as u64, advice, driver.processor(device))
}

pub(crate) unsafe fn cuMemAdvise_v2(
    address: CUdeviceptr,
    bytes: usize,
    advice: u32,
    location: CUmemLocation,
) -> Done {
    let driver = driver()?;
    driver.advise(address, bytes as u64, advice, driver.located(location))
}

pub(crate) unsafe fn cuMemPrefetchAsync(
    address: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: CUstream,
) -> Done {
    let driver = driver()?;
    driver.prefetch(address, bytes as u64, driver.processor(device)?, stream)
}

pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    driver.prefetch(address, bytes as u64, driver.located(location)?, stream)
}

/// Accepts the attachment, which changes nothing: host and device can use managed memory at all
/// times.
pub(crate) unsafe fn cuStreamAttachMemAsync(
    stream: CUstream,
    address: CUdeviceptr,
    bytes: usize,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let is_known = matches!(flags, ATTACH_GLOBAL | ATTACH_HOST | ATTACH_SINGLE);
    if !is_known || (flags == ATTACH_SINGLE && stream.is_null()) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let context = driver.work_stream(stream)?.context();
    driver.session.check_in(context)?;
    let host = driver.host.read();
    // The argument names a whole allocation, by its length or 0.
    host.find(address)
        .filter(|r| r.advices().is_some() && r.base == address)
        .filter(|r| bytes == 0 || bytes as u64 == r.bytes)
        .map(|_| ())
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Returns the value that all parts have in common.
fn common<T: PartialEq>(parts: &[Advice], value: impl Fn(&Advice) -> T) -> Option<T> {
    let first = value(parts.first()?);
    parts
        .iter()
        .all(|part| value(part) == first)
        .then_some(first)
}

fn device_of(processor: Option<Processor>) -> CUdevice {
    match processor {
        Some(Processor::Device(device)) => device,
        Some(Processor::Host | Processor::Node(_)) => DEVICE_CPU,
        None => DEVICE_INVALID,
    }
}

/// Returns the type and id of `CUmemLocation` for a processor.
fn location_of(processor: Option<Processor>) -> (u32, i32) {
    match processor {
        Some(Processor::Device(device)) => (CU_MEM_LOCATION_TYPE_DEVICE, device),
        Some(Processor::Host) => (CU_MEM_LOCATION_TYPE_HOST, 0),
        Some(Processor::Node(node)) => (CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
        None => (CU_MEM_LOCATION_TYPE_INVALID, 0),
    }
}

/// # Safety
/// `data` has room for `len` bytes.
unsafe fn put_range_attribute(
    data: *mut c_void,
    len: usize,
    attribute: u32,
    parts: &[Advice],
) -> Done {
    let preferred = common(parts, |a| a.preferred).flatten();
    let prefetched = common(parts, |a| a.prefetched_to).flatten();
    let word = match attribute {
        READ_MOSTLY => i32::from(parts.iter().all(|a| a.is_read_mostly)),
        PREFERRED_LOCATION => device_of(preferred),
        LAST_PREFETCH_LOCATION => device_of(prefetched),
        PREFERRED_LOCATION_TYPE => location_of(preferred).0 as i32,
        PREFERRED_LOCATION_ID => location_of(preferred).1,
        LAST_PREFETCH_LOCATION_TYPE => location_of(prefetched).0 as i32,
        LAST_PREFETCH_LOCATION_ID => location_of(prefetched).1,
        ACCESSED_BY => {
            if data.is_null() || len == 0 || !len.is_multiple_of(4) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            let by_all = parts[0]
                .accessed_by
                .iter()
                .filter(|by| parts.iter().all(|a| a.accessed_by.contains(by)));
            let mut devices: Vec<CUdevice> = by_all.map(|by| device_of(Some(*by))).collect();
            // The host, a negative number, comes after the GPUs.
            devices.sort_by_key(|device| device.cast_unsigned());
            let mut devices = devices.into_iter();
            for index in 0..len / 4 {
                let device = devices.next().unwrap_or(DEVICE_INVALID);
                // SAFETY: inside the `len` bytes that this function's contract asks for.
                unsafe { data.cast::<CUdevice>().add(index).write(device) };
            }
            return Ok(());
        }
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    if len != 4 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and `len` says that there is room for a word.
    unsafe { data.cast::<i32>().write(word) };
    Ok(())
}

pub(crate) unsafe fn cuMemRangeGetAttribute(
    data: *mut c_void,
    len: usize,
    attribute: u32,
    address: CUdeviceptr,
    bytes: usize,
) -> Done {
    let parts = driver()?.with_advices(address, bytes as u64, |advices, at| advices.of(at))?;
    // SAFETY: the driver API asks its callers for `len` bytes of room.
    unsafe { put_range_attribute(data, len, attribute, &parts) }
}

pub(crate) unsafe fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    lens: *mut usize,
    attributes: *mut u32,
    count: usize,
    address: CUdeviceptr,
    bytes: usize,
) -> Done {
    if data.is_null() || lens.is_null() || attributes.is_null() || count == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let parts = driver()?.with_advices(address, bytes as u64, |advices, at| advices.of(at))?;
    for index in 0..count {
        // SAFETY: arrays of `count` entries, and as many bytes of room as each length says: the
        // driver API asks it of its callers.
        unsafe {
            put_range_attribute(
                *data.add(index),
                *lens.add(index),
                *attributes.add(index),
                &parts,
            )?;
        }
    }
    Ok(())
}
