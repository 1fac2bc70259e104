//! Recordings: a program's driver calls, and the work that its GPU did for them.
//!
//! The cost model, the replay simulator and the reports work on recordings; none of them needs a
//! GPU.
//!
//! ```text
//!  a driver call ──► Live: functions, threads, streams get numbers   live.rs
//!                              │
//!  the program's threads ──► rings, one a thread                      ring.rs, writer.rs
//!                              │  emptied every 100 ms or when half full
//!                            Drain, a thread of its own                  writer.rs, clock.rs
//!                              │
//!                            blocks: records packed, compressed          encode.rs, format.rs
//!                              │
//!                            FILE ──► read(): blocks checked, unpacked   read.rs
//! ```
//!
//! The file is described in `docs/trace-format.md`.

pub mod chrome;
mod clock;
pub mod cut;
mod encode;
mod error;
mod format;
mod limits;
pub mod live;
mod numbers;
pub mod nvtx;
mod place;
mod read;
mod record;
mod ring;
pub mod summary;
mod writer;

pub use clock::Ticks;
pub use encode::{to_bytes, write};
pub use error::{Damage, Error};
pub use format::{VERSION, VERSION_MIN};
pub use limits::*;
pub use outboard_api::decl::Class;
pub use place::{claim, is_recording};
pub use read::{Item, Reader, read, read_bytes};
pub use record::{
    About, Call, CallCost, Device, GpuTimes, GpuWork, Host, Mark, Record, RecordedServer, Trace,
    Work,
};
pub use writer::{Drain, Finished, Writer};

/// Reads arbitrary bytes, as a file, and as blocks with valid checksums. For the fuzzer.
pub fn fuzz(data: &[u8]) {
    let plain_bytes = data.first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
    let files = encode::blocks_of(data, plain_bytes % (2 * BLOCK_BYTES_MAX as u32));
    for file in files.iter().map(Vec::as_slice).chain([data]) {
        if let Ok(trace) = read_bytes(file) {
            // A recording that was read can be written and read again.
            let again = read_bytes(&to_bytes(&trace));
            assert_eq!(again.as_ref(), Ok(&trace), "a recording changed on its way");
        }
    }
}

/// Encodes the plain content of a block of records, for the fuzzer to start from.
pub fn fuzz_seed(trace: &Trace) -> Vec<u8> {
    encode::plain(trace)
}
