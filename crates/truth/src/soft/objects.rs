//! Textures and surfaces of the software device, for jobs that have one.

use outboard_ptx::Memory;
use outboard_ptx::array::Array;
use outboard_ptx::texture::{AddressMode, Bound, Channel, Cube, Mips, Sampler, Texels, Texture};

use crate::setup::{self, Format, Geometry, Mode, Object, Resource, Setup, Storage, View};

/// The number that kernels receive.
pub(super) const NUMBER: u64 = 0x0b1e_c700_0000_0001;

/// The texels of the bound object.
pub(super) struct Texture3d(Array);

/// Binds a job's object to [`NUMBER`]; the error tells what is not supported.
pub(super) fn bind(memory: &Memory, setup: &Setup) -> Result<Texture3d, String> {
    let resource = &setup.resource;
    let bytes: usize = (0..resource.levels).map(|l| resource.level_bytes(l)).sum();
    let array = Array::new(memory, bytes as u64).map_err(|e| e.to_string())?;
    let texels = texels(resource, array.address());
    for level in 0..resource.levels {
        let address = texels.level(level as u32).address;
        memory
            .write(address, &resource.texels(level))
            .map_err(|e| e.to_string())?;
    }
    let bound = match &setup.object {
        Object::Surface => Bound::Surface(texels),
        Object::Texture(sampler, view) => Bound::Texture(Texture {
            texels: match view {
                None => texels,
                Some(view) => viewed(&texels, view).ok_or("no such view")?,
            },
            sampler: self::sampler(sampler),
            linear_memory: resource.storage == Storage::Linear,
        }),
    };
    memory.bind(NUMBER, bound);
    Ok(Texture3d(array))
}

impl Texture3d {
    /// Returns the surface's texels, and unbinds it.
    pub(super) fn unbind(self, memory: &Memory, setup: &Setup) -> Result<Vec<u8>, String> {
        memory.unbind(NUMBER);
        let mut texels = vec![0; setup.bytes_back()];
        memory
            .read(self.0.address(), &mut texels)
            .map_err(|e| e.to_string())?;
        Ok(texels)
    }
}

fn texels(resource: &Resource, address: u64) -> Texels {
    let geometry = resource.geometry;
    Texels {
        address,
        channel: match resource.format {
            Format::U8 => Channel::U8,
            Format::U16 => Channel::U16,
            Format::U32 => Channel::U32,
            Format::S8 => Channel::S8,
            Format::S16 => Channel::S16,
            Format::S32 => Channel::S32,
            Format::Half => Channel::Half,
            Format::Float => Channel::Float,
        },
        channels: resource.channels as u32,
        size: resource.size.map(|n| n as u64),
        dimensions: geometry.dimensions() as u32,
        layers: (geometry.is_layered() || geometry.is_cube()).then_some(resource.layers as u64),
        cube: match geometry {
            Geometry::Cube => Cube::One,
            Geometry::Acube => Cube::Layers,
            _ => Cube::No,
        },
        levels: resource.levels as u32,
        pitch_bytes: resource.pitch_bytes(0) as u64,
    }
}

/// `CUresourceViewFormat`
fn viewed(texels: &Texels, view: &View) -> Option<Texels> {
    let channels = [
        Channel::U8,
        Channel::S8,
        Channel::U16,
        Channel::S16,
        Channel::U32,
        Channel::S32,
        Channel::Half,
        Channel::Float,
    ];
    let format = view.format.checked_sub(1)? as usize;
    let channel = *channels.get(format / 3)?;
    texels.view((channel, [1, 2, 4][format % 3]), view.levels, view.layers)
}

fn sampler(sampler: &setup::Sampler) -> Sampler {
    Sampler {
        address: sampler.modes.map(|mode| match mode {
            Mode::Wrap => AddressMode::Wrap,
            Mode::Clamp => AddressMode::Clamp,
            Mode::Mirror => AddressMode::Mirror,
            Mode::Border => AddressMode::Border,
        }),
        linear: sampler.linear,
        normalised: sampler.normalised,
        as_integers: sampler.integers,
        srgb: sampler.srgb,
        seamless: sampler.seamless,
        border: sampler.border,
        mips: Mips {
            linear: sampler.mip_linear,
            bias: sampler.mip_bias,
            clamp: sampler.mip_clamp,
            anisotropy: sampler.anisotropy,
        },
    }
}
