//! Fields of CUDA's records of arrays and textures.

use outboard_api::enums::*;
use outboard_device::Failure;
use outboard_ptx::texture::Channel;

use super::wait::invalid;

pub(super) fn word(record: &[u8], at: usize) -> u32 {
    let bytes = record.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn long(record: &[u8], at: usize) -> u64 {
    u64::from(word(record, at)) | u64::from(word(record, at + 4)) << 32
}

pub(super) fn sized(record: &[u8], bytes: usize) -> Result<&[u8], Failure> {
    match record.len() == bytes {
        true => Ok(record),
        false => Err(invalid(format!(
            "a record of {} bytes; it has {bytes}",
            record.len()
        ))),
    }
}

pub(super) fn channel(format: u32) -> Result<Channel, Failure> {
    Ok(match format {
        CU_AD_FORMAT_UNSIGNED_INT8 => Channel::U8,
        CU_AD_FORMAT_UNSIGNED_INT16 => Channel::U16,
        CU_AD_FORMAT_UNSIGNED_INT32 => Channel::U32,
        CU_AD_FORMAT_SIGNED_INT8 => Channel::S8,
        CU_AD_FORMAT_SIGNED_INT16 => Channel::S16,
        CU_AD_FORMAT_SIGNED_INT32 => Channel::S32,
        CU_AD_FORMAT_HALF => Channel::Half,
        CU_AD_FORMAT_FLOAT => Channel::Float,
        _ => {
            return Err(Failure::unsupported(&format!(
                "arrays and textures of format {format}"
            )));
        }
    })
}

pub(super) fn channel_count(channels: u32) -> Result<u32, Failure> {
    match channels {
        1 | 2 | 4 => Ok(channels),
        _ => Err(invalid(format!("texels of {channels} channels"))),
    }
}
