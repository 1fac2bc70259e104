//! The wiring of the GPU's multiprocessors. cuBLAS asks a private table of the driver for it before
//! it chooses a kernel with clusters, and has no fallback without the table.
//!
//! Seen on a real driver (H200, 580): the table has 17 slots. Slot 4 fills two pointers with one
//! byte for each pair of multiprocessors: its group, and its place in the group. Slot 13 frees
//! both.

use std::ffi::{c_int, c_void};

use outboard_api::{CUresult, cuda::CUuuid, enums::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT};
use outboard_device::{Cx, Failure};
use outboard_wire::messages;

use super::Nvidia;

const TABLE: CUuuid = CUuuid {
    bytes: 0x1734_dc26_800d_4745_8726_c0f1_e7dd_8bca_u128.to_be_bytes(),
};
const SLOT_GET: usize = 4;
const SLOT_FREE: usize = 13;
/// Multiprocessors that share one entry.
const MULTIPROCESSORS_PER_ENTRY: usize = 2;

type Get = unsafe extern "C" fn(groups: *mut *mut u8, ranks: *mut *mut u8) -> CUresult;
type Free = unsafe extern "C" fn(groups: *mut u8, ranks: *mut u8) -> CUresult;

impl Nvidia {
    pub(super) fn cluster_topology(
        &mut self,
        cx: &mut Cx<'_>,
        _m: &messages::ClusterTopology,
    ) -> Result<messages::ClusterTopologyReply<'static>, Failure> {
        self.enter(cx)?;
        let device: c_int = self.real_device(self.context(cx.context)?.device as i32)?;
        let multiprocessors = self
            .driver
            .cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)?;
        let entries = multiprocessors.unsigned_abs() as usize / MULTIPROCESSORS_PER_ENTRY;
        let mut table: *const c_void = std::ptr::null();
        // SAFETY: `table` has room for the answer; the name has 16 bytes.
        unsafe { self.driver.cuGetExportTable(&mut table, &TABLE) }?;
        let table = table.cast::<usize>();
        let missing = || Failure::unsupported("a driver without the cluster table");
        if table.is_null() {
            return Err(missing());
        }
        // SAFETY: in every table but one, slot 0 holds the table's length in bytes.
        let slots = unsafe { *table } / size_of::<usize>();
        if slots <= SLOT_FREE {
            return Err(missing());
        }
        // SAFETY: both slots lie inside the table, as checked above.
        let (get, free) = unsafe { (*table.add(SLOT_GET), *table.add(SLOT_FREE)) };
        if get == 0 || free == 0 {
            return Err(missing());
        }
        // SAFETY: the functions of these slots have these types, as seen on a real driver; null was
        // excluded above.
        let (get, free) = unsafe {
            (
                std::mem::transmute::<usize, Get>(get),
                std::mem::transmute::<usize, Free>(free),
            )
        };
        let (mut groups, mut ranks) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: two outputs, as the driver's own caller passes them.
        let status = unsafe { get(&mut groups, &mut ranks) };
        if status != CUresult::CUDA_SUCCESS || groups.is_null() || ranks.is_null() {
            return Err(Failure::new(
                status,
                "the driver does not tell how multiprocessors are wired",
            ));
        }
        // SAFETY: both arrays have one byte for each pair of multiprocessors.
        let reply = unsafe {
            messages::ClusterTopologyReply {
                groups: std::slice::from_raw_parts(groups, entries).to_vec().into(),
                ranks: std::slice::from_raw_parts(ranks, entries).to_vec().into(),
            }
        };
        // SAFETY: `get` gave out both pointers, and they are freed once.
        let _ = unsafe { free(groups, ranks) };
        Ok(reply)
    }
}
