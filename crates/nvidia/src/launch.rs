//! Launches.

use outboard_api::{
    CUresult,
    cuda::CUlaunchAttribute,
    enums::{
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, CU_LAUNCH_ATTRIBUTE_MAX,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
    },
};
use outboard_device::{Cx, Failure};
use outboard_wire::{doc::LAUNCH_ATTRIBUTE_BYTES, messages};

use super::{Nvidia, calls::LaunchShape};

/// Attributes of a launch, at most; more than CUDA defines.
const ATTRIBUTES_MAX: usize = 64;

impl Nvidia {
    pub(super) fn launch(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::Launch<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        self.enter_stream(m.stream)?;
        let kernel = self.launchable(cx, m.kernel, m.params, Some(m.stream))?;
        let stream = self.real_stream(m.stream)?;
        let shape = LaunchShape {
            grid: [m.grid_x, m.grid_y, m.grid_z],
            block: [m.block_x, m.block_y, m.block_z],
            shared_bytes: m.shared_bytes,
        };
        let mut attributes = attributes(self, m.attributes)?;
        Ok(self
            .driver
            .launch(kernel, stream, shape, &mut attributes, m.params)?)
    }
}

/// Decodes launch attributes, replacing the client's events by the driver's.
pub(super) fn attributes(
    device: &mut Nvidia,
    bytes: &[u8],
) -> Result<Vec<CUlaunchAttribute>, Failure> {
    let (records, rest) = bytes.as_chunks::<LAUNCH_ATTRIBUTE_BYTES>();
    if !rest.is_empty() || records.len() > ATTRIBUTES_MAX {
        return Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{} bytes of launch attributes", bytes.len()),
        ));
    }
    records
        .iter()
        .map(|record| {
            let mut attribute = parse(record);
            match attribute.id {
                CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
                | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                    let event = device.kept_event(event_id(&attribute))?;
                    attribute.value[..8].copy_from_slice(&event.raw().to_ne_bytes());
                }
                // Its value would return a pointer of the driver.
                CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => {
                    return Err(Failure::unsupported("device-updatable kernel nodes"));
                }
                // The values of attributes unknown here may contain pointers.
                unknown if unknown >= CU_LAUNCH_ATTRIBUTE_MAX => {
                    return Err(Failure::unsupported(&format!("launch attribute {unknown}")));
                }
                _ => {}
            }
            Ok(attribute)
        })
        .collect()
}

fn parse(record: &[u8; LAUNCH_ATTRIBUTE_BYTES]) -> CUlaunchAttribute {
    let mut attribute = CUlaunchAttribute {
        id: record.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)),
        pad: [0; 4],
        value: [0; 64],
    };
    attribute.value.copy_from_slice(&record[8..]);
    attribute
}

fn event_id(attribute: &CUlaunchAttribute) -> u64 {
    attribute
        .value
        .first_chunk()
        .map_or(0, |b| u64::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_an_id_and_a_value() {
        let mut record = [0; LAUNCH_ATTRIBUTE_BYTES];
        record[0] = 12;
        record[4] = 0xff;
        record[8] = 0x34;
        record[9] = 0x12;
        record[71] = 7;
        let attribute = parse(&record);
        assert_eq!(attribute.id, 12);
        assert_eq!(event_id(&attribute), 0x1234);
        assert_eq!(attribute.value[63], 7);
    }
}
