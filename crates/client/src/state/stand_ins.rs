//! Stand-ins: pinned memory in place of pageable memory for graphs, whose launches copy without the
//! program.
//!
//! A graph's copy is between the device and the stand-in. A host function of the graph moves the
//! bytes between the stand-in and the program's memory (`calls/pageable.rs`). Over shm both sides
//! and the GPU see a stand-in. Over other links the server has a mirror of it at the same address:
//! the client writes the mirror before the function ends, and receives the GPU's writes before the
//! function is called.
//!
//! Graphs are cloned, updated and nested, so the end of the last user is unknown: stand-ins stay.
//! There is one for each piece of memory and direction, however many graphs copy it.

use std::{ffi::c_void, sync::Arc};

use outboard_api::CUresult;
use outboard_wire::{limits::CHUNK_BYTES_MAX, messages, runs::Runs};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Driver;
use crate::session::Rows;

const PAGE_BYTES: u64 = 4096;

/// The program's side of a graph's copy.
#[derive(Clone, Copy)]
pub(crate) struct Pageable {
    pub(crate) address: u64,
    pub(crate) rows: Rows,
    pub(crate) to_host: bool,
}

impl Pageable {
    fn bytes(&self) -> u64 {
        (self.rows.width * self.rows.height * self.rows.depth) as u64
    }

    /// Returns the first byte of each row, in the order in which rows are packed.
    fn each_row(self) -> impl Iterator<Item = u64> {
        let Rows {
            height,
            depth,
            pitch,
            slice_pitch,
            ..
        } = self.rows;
        (0..depth)
            .flat_map(move |z| (0..height).map(move |y| z * slice_pitch + y * pitch))
            .map(move |offset| self.address + offset as u64)
    }
}

/// Holds the rows of one piece of pageable memory, packed.
pub(crate) struct StandIn {
    pub(crate) address: u64,
    bytes: u64,
    shared: bool,
}

#[derive(PartialEq, Eq, Hash)]
struct StandInKey {
    address: u64,
    bytes: u64,
    to_host: bool,
}

#[derive(Default)]
pub(crate) struct StandIns(Mutex<FxHashMap<StandInKey, Arc<StandIn>>>);

impl StandIns {
    /// Copies bytes that the GPU wrote to a mirror.
    pub(crate) fn take_pages(&self, runs: Runs<'_>) {
        let all = self.0.lock();
        if all.is_empty() {
            return;
        }
        for (address, data) in runs {
            let end = address.saturating_add(data.len() as u64);
            let holds = |s: &&Arc<StandIn>| {
                let its_end = s.address + s.bytes.next_multiple_of(PAGE_BYTES);
                !s.shared && s.address <= address && end <= its_end
            };
            if all.values().find(holds).is_none() {
                continue;
            }
            // SAFETY: inside a mapping of the library, which stays; only a host function of a graph
            // reads it, and a later message starts that function.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
        }
    }
}

impl Driver {
    pub(crate) fn stand_in(&self, host: &Pageable) -> Result<Arc<StandIn>, CUresult> {
        let bytes = host.bytes();
        let key = StandInKey {
            address: host.address,
            bytes,
            to_host: host.to_host,
        };
        if let Some(known) = self.stand_ins.0.lock().get(&key) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.make_stand_in(bytes, host.to_host)?);
        // If another thread was faster, its stand-in is used.
        Ok(self.stand_ins.0.lock().entry(key).or_insert(made).clone())
    }

    fn make_stand_in(&self, bytes: u64, to_host: bool) -> Result<StandIn, CUresult> {
        let rounded = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if self.session.shares_memory() {
            let address = self.share_memory(rounded)?;
            return Ok(StandIn {
                address,
                bytes,
                shared: true,
            });
        }
        let address = self.place(rounded, None)?;
        let made = self.mirror_stand_in(address, rounded, to_host.then_some(bytes));
        if let Err(error) = made {
            // SAFETY: the mapping just made, not used elsewhere.
            unsafe { libc::munmap(address as *mut c_void, rounded as usize) };
            return Err(error);
        }
        Ok(StandIn {
            address,
            bytes,
            shared: false,
        })
    }

    /// Has the server make the memory of a stand-in, and send back what copies write to this many
    /// bytes of it.
    fn mirror_stand_in(
        &self,
        address: u64,
        bytes: u64,
        watched_bytes: Option<u64>,
    ) -> Result<(), CUresult> {
        self.map_on_server(address, bytes, 0, None)?;
        let Some(watched_bytes) = watched_bytes else {
            return Ok(());
        };
        let watched = self.watch_on_server(address, watched_bytes);
        watched.or_else(|error| self.unmap_on_server(address).and(Err(error)))
    }

    /// Moves the bytes of a copy between the program's memory and its stand-in. Runs as a host
    /// function of the graph.
    pub(crate) fn move_stand_in(&self, host: &Pageable, stand_in: &StandIn) {
        let width = host.rows.width;
        for (index, row) in host.each_row().enumerate() {
            let packed = (stand_in.address + (index * width) as u64) as *mut u8;
            let row = row as *mut u8;
            // SAFETY: the program keeps the memory of a graph's copy while the graph runs, as the
            // driver API requires; the stand-in has room for all rows.
            unsafe {
                match host.to_host {
                    true => std::ptr::copy_nonoverlapping(packed, row, width),
                    false => std::ptr::copy_nonoverlapping(row, packed, width),
                }
            }
        }
        if host.to_host || stand_in.shared {
            return;
        }
        // SAFETY: a mapping of the library, which is written only here.
        let data = unsafe {
            std::slice::from_raw_parts(stand_in.address as *const u8, stand_in.bytes as usize)
        };
        let mut va = stand_in.address;
        for data in data.chunks(CHUNK_BYTES_MAX) {
            // A lost session does not need it, and threads that wait get its error.
            let _ = self.session.tell(&messages::HostWrite { va, data });
            va += data.len() as u64;
        }
    }
}
