//! Copies of two and three dimensions in a process with several servers: at the one that has both
//! ends, or between two, straight or through here.

use outboard_api::{
    CUresult,
    cuda::{CUDA_MEMCPY3D, CUstream},
};
use outboard_wire::{doc::BoxEnd, limits::CHUNK_BYTES_MAX};

use super::{
    Done, Request, describe, request_3d, run_here,
    shape::{End, Extent, Memory, Piece},
};
use crate::{
    calls::{
        across::{Crossing, PIECE_BYTES_MAX, Place},
        copy::MemoryKind,
        straight::{Bytes, Rows},
    },
    observe::crossings::{self, Through},
    state::{Driver, on_stream},
};

/// Pieces of a copy of rows.
struct Pieces {
    request: Request,
    pieces: Vec<Piece>,
}

impl Pieces {
    fn new(request: Request) -> Pieces {
        Pieces {
            request,
            pieces: request.extent.pieces(CHUNK_BYTES_MAX as u64),
        }
    }

    fn get(&self, index: u64) -> Result<Piece, CUresult> {
        let piece = self.pieces.get(index as usize).copied();
        piece.ok_or(CUresult::CUDA_ERROR_UNKNOWN)
    }
}

impl Rows for Pieces {
    fn bytes(&self) -> u64 {
        self.request.extent.bytes()
    }

    fn pieces(&self) -> u64 {
        self.pieces.len() as u64
    }

    fn from(&self, piece: u64) -> Result<Vec<u8>, CUresult> {
        let piece = self.get(piece)?;
        describe(PACKED, self.request.src.wire(piece), piece.extent)
    }

    fn to(&self, piece: u64) -> Result<Vec<u8>, CUresult> {
        let piece = self.get(piece)?;
        describe(self.request.dst.wire(piece), PACKED, piece.extent)
    }
}

const PACKED: (BoxEnd, [u64; 3]) = (BoxEnd::Packed, [0; 3]);

/// Runs a copy of three dimensions at its server, or between two.
pub(super) fn run_record(copy: &CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Done {
    let ends = [
        Place::of_record(copy.dst_memory_type, copy.dst_device, copy.dst_array),
        Place::of_record(copy.src_memory_type, copy.src_device, copy.src_array),
    ];
    let Some(crossing) = Crossing::of(stream, wait, ends)? else {
        let _selected = on_stream(stream);
        return run_here(copy, stream, wait);
    };
    if let [Some(to), Some(from)] = ends.map(Place::driver) {
        let Some(request) = request_3d((to, from), copy)? else {
            return Ok(());
        };
        return between(&crossing, (to, from), &request.flat());
    }
    crossing.begin()?;
    crossing.at(0, 1, |driver| {
        let stream = driver.crossing_stream()?;
        run_here(copy, CUstream(stream.wire() as usize), true)
    })
}

/// Runs a copy whose ends are device memory of two servers.
fn between(crossing: &Crossing, (to, from): (&Driver, &Driver), request: &Request) -> Done {
    let ends = [(to, &request.dst), (from, &request.src)];
    for (place, (driver, end)) in crossing.ends.into_iter().zip(ends) {
        let _selected = place.select();
        driver.check_extent(request)?;
        if driver.place_of_end(end, request.extent)? != MemoryKind::Device {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }
    crossing.begin()?;
    if let (End::Memory(dst), End::Memory(src)) = (&request.dst, &request.src) {
        let is_straight = match request.extent.is_line() {
            true => crossing.is_straight(Bytes::Line {
                dst: dst.address,
                src: src.address,
                bytes: request.extent.bytes(),
            }),
            false => crossing.is_straight(Bytes::Rows(&Pieces::new(*request))),
        };
        if is_straight? {
            return Ok(());
        }
    } else {
        crossings::went_through(Through::Array);
    }
    through_here(crossing, request)
}

/// Copies by way of this process's memory, a piece at a time.
fn through_here(crossing: &Crossing, request: &Request) -> Done {
    let pieces = request.extent.pieces(PIECE_BYTES_MAX as u64);
    let longest = pieces.iter().map(|piece| piece.extent.bytes()).max();
    let mut buffer = vec![0_u8; longest.unwrap_or(0) as usize];
    let address = buffer.as_mut_ptr() as u64;
    let run = |driver: &Driver, dst: End, src: End, extent: Extent| {
        let stream = driver.crossing_stream()?;
        driver.run_box(Request { dst, src, extent }, &stream, true)
    };
    for piece in pieces {
        let Piece { at, extent } = piece;
        let here = End::Memory(Memory {
            address,
            pitch: extent.width,
            slice_rows: extent.height,
            must_be_device: false,
        });
        crossing.at(1, 1, |driver| {
            run(driver, here, request.src.part(at), extent)
        })?;
        crossing.at(0, 0, |driver| {
            run(driver, request.dst.part(at), here, extent)
        })?;
    }
    Ok(())
}

impl Request {
    /// Returns this copy as one row if both ends have no gaps.
    fn flat(self) -> Request {
        let (End::Memory(dst), End::Memory(src)) = (self.dst, self.src) else {
            return self;
        };
        if !dst.is_contiguous(self.extent) || !src.is_contiguous(self.extent) {
            return self;
        }
        let extent = Extent {
            width: self.extent.bytes(),
            height: 1,
            depth: 1,
        };
        let row = |memory: Memory| {
            End::Memory(Memory {
                pitch: extent.width,
                slice_rows: 1,
                ..memory
            })
        };
        Request {
            dst: row(dst),
            src: row(src),
            extent,
        }
    }
}
