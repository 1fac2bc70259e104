//! Texture and surface objects. Kernels use the device's own number, so creating an object is a
//! round trip. The client remembers the object's description.

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

use super::{Done, In, Out, Untyped};
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
            CU_RESOURCE_TYPE_LINEAR => self
                .device_place(handle, word(resource, LINEAR_BYTES_OFFSET))
                .map(drop),
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
                self.device_place(handle, rows.saturating_add(1)).map(drop)
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

pub(crate) fn cuTexObjectCreate(
    object: Out<'_, CUtexObject>,
    Untyped(resource): Untyped<In<'_, Resource>>,
    Untyped(sampler): Untyped<In<'_, [u8; TEXTURE_DESC_BYTES]>>,
    Untyped(view): Untyped<In<'_, [u8; RESOURCE_VIEW_DESC_BYTES]>>,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    let (resource, sampler, view) = (resource.get()?, sampler.get()?, view.get_optional());
    object.check()?;
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
    object.put(number)
}

pub(crate) fn cuTexObjectGetResourceDesc(
    Untyped(resource): Untyped<Out<'_, Resource>>,
    object: CUtexObject,
) -> Done {
    resource.put(driver()?.object(HandleKind::Texture, object)?.resource)
}

pub(crate) fn cuTexObjectGetResourceViewDesc(
    Untyped(view): Untyped<Out<'_, [u8; RESOURCE_VIEW_DESC_BYTES]>>,
    object: CUtexObject,
) -> Done {
    let record = driver()?.object(HandleKind::Texture, object)?;
    // A texture created without a view has none.
    let found = record.view.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    view.put(found)
}

pub(crate) fn cuSurfObjectCreate(
    object: Out<'_, CUsurfObject>,
    Untyped(resource): Untyped<In<'_, Resource>>,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    let resource = resource.get()?;
    object.check()?;
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
    object.put(number)
}

pub(crate) fn cuSurfObjectGetResourceDesc(
    Untyped(resource): Untyped<Out<'_, Resource>>,
    object: CUsurfObject,
) -> Done {
    resource.put(driver()?.object(HandleKind::Surface, object)?.resource)
}
