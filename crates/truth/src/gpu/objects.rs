//! Arrays, textures and surfaces through the driver, for jobs that have one (cuda.h; CUDA driver
//! API, "Texture Object Management"). Unsafe for the reasons that [`crate::gpu`] gives.

use std::ffi::c_void;

use outboard_api::cuda::{CUarray, CUmipmappedArray};

use super::{Gpu, GpuError, checked};
use crate::setup::{Geometry, Object, Resource, Sampler, Setup, Storage, View};

/// `CUDA_ARRAY3D_LAYERED` and similar flags.
const LAYERED: u32 = 0x01;
const SURFACE_LDST: u32 = 0x02;
const CUBEMAP: u32 = 0x04;
const TEXTURE_GATHER: u32 = 0x08;
/// `CUresourcetype`
const ARRAY: u32 = 0;
const MIPMAPPED_ARRAY: u32 = 1;
const LINEAR: u32 = 2;
const PITCH2D: u32 = 3;
/// `CUmemorytype`
const HOST: u32 = 1;
const OF_ARRAY: u32 = 3;

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
pub(super) struct ArrayDescriptor {
    size: [usize; 3],
    format: u32,
    channels: u32,
    flags: u32,
}

/// One end of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    x_bytes: usize,
    y: usize,
    z: usize,
    lod: usize,
    kind: u32,
    host: *const c_void,
    device: u64,
    array: CUarray,
    reserved: usize,
    pitch_bytes: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
pub(super) struct Copy3d {
    from: End,
    to: End,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

/// `CUDA_RESOURCE_DESC`: kind, union of 128 bytes, flags.
#[repr(C)]
pub(super) struct ResourceDesc {
    kind: u32,
    union: [u64; 16],
    flags: u32,
}

/// `CUDA_TEXTURE_DESC`
#[repr(C)]
pub(super) struct TextureDesc {
    modes: [u32; 3],
    filter: u32,
    flags: u32,
    anisotropy: u32,
    mip_filter: u32,
    mip_bias: f32,
    mip_clamp: [f32; 2],
    border: [f32; 4],
    reserved: [u32; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[repr(C)]
pub(super) struct ViewDesc {
    format: u32,
    size: [usize; 3],
    levels: [u32; 2],
    layers: [u32; 2],
    reserved: [u32; 16],
}

const _: () = {
    assert!(size_of::<ArrayDescriptor>() == 40);
    assert!(size_of::<Copy3d>() == 200);
    assert!(size_of::<ResourceDesc>() == 144);
    assert!(size_of::<TextureDesc>() == 104);
    assert!(size_of::<ViewDesc>() == 112);
};

/// The driver's memory of texels.
enum Memory {
    Array(CUarray),
    Mipmapped(CUmipmappedArray),
    /// Device memory at this address, which is the job's buffer.
    Plain(u64),
}

/// A job's object, until [`Gpu::unbind`].
pub(super) struct Bound {
    memory: Memory,
    /// The number that the kernel receives; 0 after a refusal.
    pub(super) number: u64,
    is_surface: bool,
}

impl Gpu {
    /// Makes the object that a job's kernel uses.
    pub(super) fn bind(&self, setup: &Setup) -> Result<Bound, GpuError> {
        let mut bound = Bound {
            memory: self.memory(&setup.resource)?,
            number: 0,
            is_surface: setup.object == Object::Surface,
        };
        let made = self
            .fill(&bound.memory, &setup.resource)
            .and_then(|()| self.object(&bound.memory, setup));
        match made {
            Ok(number) => bound.number = number,
            Err(error) => {
                self.unbind(bound)?;
                return Err(error);
            }
        }
        Ok(bound)
    }

    pub(super) fn unbind(&self, bound: Bound) -> Result<(), GpuError> {
        let calls = &self.calls;
        // SAFETY: the driver's own handles, and nothing runs that uses them.
        unsafe {
            match (bound.number, bound.is_surface) {
                (0, _) => {}
                (number, true) => {
                    checked("cuSurfObjectDestroy", (calls.cuSurfObjectDestroy)(number))?
                }
                (number, false) => {
                    checked("cuTexObjectDestroy", (calls.cuTexObjectDestroy)(number))?
                }
            }
            match bound.memory {
                Memory::Array(array) => checked("cuArrayDestroy", (calls.cuArrayDestroy)(array)),
                Memory::Mipmapped(array) => checked(
                    "cuMipmappedArrayDestroy",
                    (calls.cuMipmappedArrayDestroy)(array),
                ),
                Memory::Plain(_) => Ok(()),
            }
        }
    }

    fn memory(&self, resource: &Resource) -> Result<Memory, GpuError> {
        if resource.storage != Storage::Array {
            return Ok(Memory::Plain(self.texels));
        }
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let geometry = resource.geometry;
        let layered = geometry.is_layered() || geometry.is_cube();
        let is_flat = geometry.dimensions() == 1;
        let descriptor = ArrayDescriptor {
            size: [
                resource.size[0],
                if is_flat { 0 } else { resource.size[1] },
                match (layered, geometry.dimensions()) {
                    (true, _) => resource.layers,
                    (_, 3) => resource.size[2],
                    _ => 0,
                },
            ],
            format: resource.format as u32,
            channels: resource.channels as u32,
            flags: flag(geometry.is_layered(), LAYERED)
                | flag(geometry.is_cube(), CUBEMAP)
                | flag(!geometry.is_cube() && resource.levels == 1, SURFACE_LDST)
                | flag(geometry == Geometry::D2, TEXTURE_GATHER),
        };
        let descriptor = (&raw const descriptor).cast();
        let levels = resource.levels as u32;
        // SAFETY: the driver's own handles; records and outputs outlive the calls.
        unsafe {
            if levels > 1 {
                let mut array = CUmipmappedArray::NULL;
                checked(
                    "cuMipmappedArrayCreate",
                    (self.calls.cuMipmappedArrayCreate)(&mut array, descriptor, levels),
                )?;
                return Ok(Memory::Mipmapped(array));
            }
            let mut array = CUarray::NULL;
            checked(
                "cuArray3DCreate",
                (self.calls.cuArray3DCreate_v2)(&mut array, descriptor),
            )?;
            Ok(Memory::Array(array))
        }
    }

    fn fill(&self, memory: &Memory, resource: &Resource) -> Result<(), GpuError> {
        for level in 0..resource.levels {
            let texels = resource.texels(level);
            let array = match *memory {
                Memory::Array(array) => array,
                Memory::Mipmapped(all) => {
                    let mut array = CUarray::NULL;
                    let get = self.calls.cuMipmappedArrayGetLevel;
                    // SAFETY: the driver's own handles; records and outputs outlive the calls.
                    let status = unsafe { get(&mut array, all, level as u32) };
                    checked("cuMipmappedArrayGetLevel", status)?;
                    array
                }
                Memory::Plain(address) => {
                    if texels.len() > super::BUFFER_BYTES {
                        return Err(GpuError::TooLong);
                    }
                    let to_device = self.calls.cuMemcpyHtoD_v2;
                    // SAFETY: the texels are not longer than the device's buffer.
                    let status =
                        unsafe { to_device(address, texels.as_ptr().cast(), texels.len()) };
                    return checked("cuMemcpyHtoD", status);
                }
            };
            let host = End::host(resource, level, texels.as_ptr());
            self.copy(resource, level, host, End::array(array))?;
        }
        Ok(())
    }

    /// Returns the surface's texels.
    pub(super) fn texels_back(
        &self,
        bound: &Bound,
        resource: &Resource,
    ) -> Result<Vec<u8>, GpuError> {
        let mut texels = vec![0u8; resource.level_bytes(0)];
        if let Memory::Array(array) = bound.memory {
            let host = End::host(resource, 0, texels.as_mut_ptr());
            self.copy(resource, 0, End::array(array), host)?;
        }
        Ok(texels)
    }

    fn copy(&self, resource: &Resource, level: usize, from: End, to: End) -> Result<(), GpuError> {
        let [width, height, depth] = resource.level_size(level);
        let copy = Copy3d {
            from,
            to,
            width_bytes: width * resource.texel_bytes(),
            height,
            depth: depth * resource.layers,
        };
        // SAFETY: a record of the declared type, whose ends have as many rows as the copy.
        checked("cuMemcpy3D", unsafe {
            (self.calls.cuMemcpy3D_v2)((&raw const copy).cast())
        })
    }

    fn object(&self, memory: &Memory, setup: &Setup) -> Result<u64, GpuError> {
        let resource = &setup.resource;
        let mut desc = ResourceDesc {
            kind: 0,
            union: [0; 16],
            flags: 0,
        };
        let format = resource.format as u64 | (resource.channels as u64) << 32;
        match *memory {
            Memory::Array(array) => (desc.kind, desc.union[0]) = (ARRAY, array.0 as u64),
            Memory::Mipmapped(array) => {
                (desc.kind, desc.union[0]) = (MIPMAPPED_ARRAY, array.0 as u64);
            }
            Memory::Plain(address) if resource.storage == Storage::Linear => {
                desc.kind = LINEAR;
                desc.union[..3].copy_from_slice(&[address, format, resource.level_bytes(0) as u64]);
            }
            Memory::Plain(address) => {
                let [width, height, _] = resource.size.map(|n| n as u64);
                desc.kind = PITCH2D;
                desc.union[..5].copy_from_slice(&[
                    address,
                    format,
                    width,
                    height,
                    resource.pitch_bytes(0) as u64,
                ]);
            }
        }
        let mut number = 0;
        // SAFETY: the driver's own handles; records and outputs outlive the calls.
        unsafe {
            match &setup.object {
                Object::Surface => checked(
                    "cuSurfObjectCreate",
                    (self.calls.cuSurfObjectCreate)(&mut number, (&raw const desc).cast()),
                )?,
                Object::Texture(sampler, view) => {
                    let view = view.as_ref().map(ViewDesc::of);
                    let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                    let sampler = TextureDesc::of(sampler);
                    checked(
                        "cuTexObjectCreate",
                        (self.calls.cuTexObjectCreate)(
                            &mut number,
                            (&raw const desc).cast(),
                            (&raw const sampler).cast(),
                            view.cast(),
                        ),
                    )?;
                }
            }
        }
        Ok(number)
    }
}

impl End {
    const NONE: End = End {
        x_bytes: 0,
        y: 0,
        z: 0,
        lod: 0,
        kind: 0,
        host: std::ptr::null(),
        device: 0,
        array: CUarray::NULL,
        reserved: 0,
        pitch_bytes: 0,
        height: 0,
    };

    fn host(resource: &Resource, level: usize, texels: *const u8) -> End {
        End {
            kind: HOST,
            host: texels.cast(),
            pitch_bytes: resource.pitch_bytes(level),
            height: resource.level_size(level)[1],
            ..End::NONE
        }
    }

    fn array(array: CUarray) -> End {
        End {
            kind: OF_ARRAY,
            array,
            ..End::NONE
        }
    }
}

impl TextureDesc {
    fn of(sampler: &Sampler) -> TextureDesc {
        TextureDesc {
            modes: sampler.modes.map(|mode| mode as u32),
            filter: sampler.linear.into(),
            flags: sampler.flags(),
            anisotropy: sampler.anisotropy,
            mip_filter: sampler.mip_linear.into(),
            mip_bias: sampler.mip_bias,
            mip_clamp: sampler.mip_clamp,
            border: sampler.border,
            reserved: [0; 12],
        }
    }
}

impl ViewDesc {
    fn of(view: &View) -> ViewDesc {
        ViewDesc {
            format: view.format,
            size: view.size,
            levels: view.levels,
            layers: view.layers,
            reserved: [0; 16],
        }
    }
}
