//! Attributes of launch configurations.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{CUevent, CUlaunchAttribute, CUlaunchConfig},
    enums::*,
};

use crate::state::{Driver, Event, StreamRef};

/// Most attributes of a configuration.
const ATTRIBUTES_MAX: u32 = 64;

/// Returns the attributes of a configuration as bytes.
///
/// # Safety
/// `config.attrs` must be NULL or have `num_attrs` entries.
pub(crate) unsafe fn attribute_bytes(config: &CUlaunchConfig) -> Result<&[u8], CUresult> {
    if config.num_attrs == 0 {
        return Ok(&[]);
    }
    if config.attrs.is_null() || config.num_attrs > ATTRIBUTES_MAX {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so it has that many entries by this function's contract.
    Ok(unsafe {
        std::slice::from_raw_parts(
            config.attrs.cast::<u8>(),
            config.num_attrs as usize * size_of::<CUlaunchAttribute>(),
        )
    })
}

/// Returns the number of each attribute and the first words of its value.
#[inline(always)]
pub(crate) fn each(attributes: &[u8]) -> impl Iterator<Item = (u32, [u32; 4])> {
    let records = attributes.chunks_exact(size_of::<CUlaunchAttribute>());
    records.map(|record| {
        let word = |at: usize| {
            let bytes = record[at..].first_chunk::<4>();
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        (word(0), [8, 12, 16, 20].map(word))
    })
}

/// Whether a launch with these attributes is more than a message.
#[inline(always)]
pub(crate) fn need_checks(attributes: &[u8]) -> bool {
    each(attributes).any(|(id, _)| id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || is_event(id))
}

#[inline(always)]
fn is_event(id: u32) -> bool {
    matches!(
        id,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
    )
}

impl Driver {
    /// Returns the events that a launch with these attributes records before its kernel is done.
    pub(crate) fn events_of_launch(
        &self,
        attributes: &[u8],
        stream: &StreamRef,
    ) -> Result<Vec<Arc<Event>>, CUresult> {
        let mut events = Vec::new();
        for (id, [low, high, ..]) in each(attributes) {
            if !is_event(id) {
                continue;
            }
            let handle = u64::from(low) | u64::from(high) << 32;
            let event = self.streams.event(CUevent(handle as usize))?;
            if event.context != stream.stream().context {
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            }
            if event.flags & CU_EVENT_DISABLE_TIMING == 0 || event.is_shared() {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            events.push(event);
        }
        Ok(events)
    }
}
