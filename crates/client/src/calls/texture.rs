//! Texture and surface objects. Kernels use the device's own number, so creating an object is a
//! round trip. The client remembers the object's description.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUarray, CUmipmappedArray, CUsurfObject, CUtexObject},
    enums::*,
};
use outboard_wire::{
    doc::{
        RESOURCE_DESC_BYTES, RESOURCE_DESC_HANDLE_OFFSET, RESOURCE_VIEW_DESC_BYTES,
        TEXTURE_DESC_BYTES,
    },
    messages,
};

use super::{Done, put};
use crate::state::{Driver, HandleKind, ObjectRecord, driver};

type Resource = [u8; RESOURCE_DESC_BYTES];

/// Offset in `CUDA_RESOURCE_DESC` of the size of linear memory.
const LINEAR_BYTES_OFFSET: usize = 24;
/// Offset of the height of two-dimensional memory; width and height are in elements.
const PITCH2D_HEIGHT_OFFSET: usize = 32;
const PITCH2D_PITCH_OFFSET: usize = 40;

fn word(record: &[u8], offset: usize) -> u64 {
    record[offset..]
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Driver {
    /// Checks a resource. Handles of arrays are also their numbers in messages.
    fn check_resource(&self, resource: &Resource) -> Done {
        let kind = word(resource, 0) as u32;
        let handle = word(resource, RESOURCE_DESC_HANDLE_OFFSET);
        match kind {
            CU_RESOURCE_TYPE_ARRAY => self.wire_array(CUarray(handle as usize)).map(drop),
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => self
                .wire_mipmap(CUmipmappedArray(handle as usize))
                .map(drop),
            CU_RESOURCE_TYPE_LINEAR => {
                self.device_place(handle, word(resource, LINEAR_BYTES_OFFSET))
            }
            CU_RESOURCE_TYPE_PITCH2D => {
                let (height, pitch) = (
                    word(resource, PITCH2D_HEIGHT_OFFSET),
                    word(resource, PITCH2D_PITCH_OFFSET),
                );
                // The last row may be shorter than the pitch.
                let rows = height
                    .saturating_sub(1)
                    .checked_mul(pitch)
                    .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
                self.device_place(handle, rows.saturating_add(1))
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn object(&self, kind: HandleKind, object: u64) -> Result<ObjectRecord, CUresult> {
        self.objects
            .get(kind, object)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// # Safety
/// `record` is NULL or a record of `N` bytes.
unsafe fn read<const N: usize>(record: *const c_void) -> Option<[u8; N]> {
    // SAFETY: the caller's promise; bytes have no alignment.
    unsafe { record.cast::<[u8; N]>().as_ref() }.copied()
}

pub(crate) unsafe fn cuTexObjectCreate(
    object: *mut CUtexObject,
    resource: *const c_void,
    sampler: *const c_void,
    view: *const c_void,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    // SAFETY: NULL or records of the caller's.
    let (resource, sampler, view) = unsafe {
        (
            read::<RESOURCE_DESC_BYTES>(resource),
            read::<TEXTURE_DESC_BYTES>(sampler),
            read::<RESOURCE_VIEW_DESC_BYTES>(view),
        )
    };
    let (Some(resource), Some(sampler), false) = (resource, sampler, object.is_null()) else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    driver.check_resource(&resource)?;
    let texture = driver.handles.mint(HandleKind::Texture);
    let message = messages::TextureCreate {
        texture,
        resource: &resource,
        sampler: &sampler,
        view: view.as_ref().map_or(&[], |v| v.as_slice()),
    };
    let number = driver.call(&message, |reply| reply.object)?;
    driver.objects.insert(
        HandleKind::Texture,
        number,
        ObjectRecord {
            wire: texture,
            resource,
            view,
        },
    );
    // SAFETY: see the module's contract.
    unsafe { put(object, number) }
}

pub(crate) unsafe fn cuTexObjectGetResourceDesc(
    resource: *mut c_void,
    object: CUtexObject,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        put(
            resource.cast::<Resource>(),
            driver()?.object(HandleKind::Texture, object)?.resource,
        )
    }
}

pub(crate) unsafe fn cuTexObjectGetResourceViewDesc(
    view: *mut c_void,
    object: CUtexObject,
) -> Done {
    let record = driver()?.object(HandleKind::Texture, object)?;
    // A texture created without a view has none.
    let found = record.view.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: see the module's contract.
    unsafe { put(view.cast::<[u8; RESOURCE_VIEW_DESC_BYTES]>(), found) }
}

pub(crate) unsafe fn cuSurfObjectCreate(
    object: *mut CUsurfObject,
    resource: *const c_void,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    // SAFETY: NULL or a record of the caller's.
    let resource = unsafe { read::<RESOURCE_DESC_BYTES>(resource) }
        .filter(|_| !object.is_null())
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // Surfaces need arrays.
    if word(&resource, 0) as u32 != CU_RESOURCE_TYPE_ARRAY {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.check_resource(&resource)?;
    let surface = driver.handles.mint(HandleKind::Surface);
    let number = driver.call(
        &messages::SurfaceCreate {
            surface,
            resource: &resource,
        },
        |reply| reply.object,
    )?;
    driver.objects.insert(
        HandleKind::Surface,
        number,
        ObjectRecord {
            wire: surface,
            resource,
            view: None,
        },
    );
    // SAFETY: see the module's contract.
    unsafe { put(object, number) }
}

pub(crate) unsafe fn cuSurfObjectGetResourceDesc(
    resource: *mut c_void,
    object: CUsurfObject,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        put(
            resource.cast::<Resource>(),
            driver()?.object(HandleKind::Surface, object)?.resource,
        )
    }
}
