//! Textures and surfaces of the software device, for jobs that have one.

use outboard_ptx::Memory;
use outboard_ptx::texture::{AddressMode, Array, Bound, Channel, Sampler, Texels, Texture};

use crate::textures::{self, Format, Mode, Object, Place, Resource, Setup};

/// What kernels get.
pub(super) const NUMBER: u64 = 0x0b1e_c700_0000_0001;

/// The texels of the bound object.
pub(super) struct Texture3d(Array);

/// Binds a job's object to [`NUMBER`]; says what is not there.
pub(super) fn bind(memory: &Memory, setup: &Setup) -> Result<Texture3d, String> {
    let resource = &setup.resource;
    let bytes = resource.level_bytes(0);
    let array = Array::new(memory, bytes as u64).map_err(|e| e.to_string())?;
    let mut texels = texels(resource)?;
    texels.address = array.address();
    memory
        .write(texels.address, &resource.texels(0))
        .map_err(|e| e.to_string())?;
    let bound = match &setup.object {
        Object::Surface => Bound::Surface(texels),
        Object::Texture(_, Some(_)) => return Err("resource views".into()),
        Object::Texture(sampler, None) => Bound::Texture(Texture {
            texels,
            sampler: self::sampler(sampler, resource)?,
            linear_memory: resource.place == Place::Linear,
        }),
    };
    memory.bind(NUMBER, bound);
    Ok(Texture3d(array))
}

impl Texture3d {
    /// What the surface holds; unbinds it.
    pub(super) fn unbind(self, memory: &Memory, setup: &Setup) -> Result<Vec<u8>, String> {
        memory.unbind(NUMBER);
        let mut texels = vec![0; setup.bytes_back()];
        memory
            .read(self.0.address(), &mut texels)
            .map_err(|e| e.to_string())?;
        Ok(texels)
    }
}

fn texels(resource: &Resource) -> Result<Texels, String> {
    let geometry = resource.geometry;
    if geometry.is_cube() {
        return Err("cubemaps".into());
    }
    if resource.levels > 1 {
        return Err("mipmapped arrays".into());
    }
    Ok(Texels {
        address: 0,
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
        layers: geometry.is_layered().then_some(resource.layers as u64),
        pitch_bytes: resource.pitch_bytes(0) as u64,
    })
}

fn sampler(sampler: &textures::Sampler, resource: &Resource) -> Result<Sampler, String> {
    if sampler.srgb {
        return Err("sRGB".into());
    }
    let integers = sampler.integers || resource.format.bytes() == 4;
    if !resource.format.is_float() && integers && sampler.border != [0.0; 4] {
        return Err("border colours of integers".into());
    }
    Ok(Sampler {
        address: sampler.modes.map(|mode| match mode {
            Mode::Wrap => AddressMode::Wrap,
            Mode::Clamp => AddressMode::Clamp,
            Mode::Mirror => AddressMode::Mirror,
            Mode::Border => AddressMode::Border,
        }),
        linear: sampler.linear,
        normalised: sampler.normalised,
        as_integers: sampler.integers,
        border: sampler.border,
    })
}
