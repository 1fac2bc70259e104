//! Copies and memsets.

use outboard_device::{Cx, Failure, Pending};
use outboard_ptx::device::{Copy, Extent, Op, Rows, Set, StreamId};
use outboard_wire::{
    doc::{self, BoxEnd, CopyBox},
    limits::CHUNK_BYTES_MAX,
    messages,
};

use super::{
    Soft,
    wait::{failure, invalid, pending},
};

/// A fault that tests switch on to see that they find it: later work of other streams may overtake
/// a synchronous copy.
mod fault {
    /// Whether the fault is on, which only a build with debug assertions allows.
    pub(super) fn is_back() -> bool {
        cfg!(debug_assertions)
            && std::env::var_os("OUTBOARD_FAULT").is_some_and(|fault| fault == "overtaken-copies")
    }
}

impl Soft {
    pub(super) fn submit(&mut self, cx: &Cx<'_>, stream: u64, op: Op) -> Result<(), Failure> {
        let stream = self.stream(cx, stream)?;
        self.touched = true;
        self.gpu.submit(stream, op).map_err(failure)
    }

    /// Makes all later work of every stream wait for the copy just submitted, if a synchronous call
    /// made that copy.
    fn settle(&self, stream: StreamId, sync: u32) -> Result<(), Failure> {
        match sync {
            0 => Ok(()),
            _ if fault::is_back() => Ok(()),
            _ => self.gpu.settle(stream).map_err(failure),
        }
    }

    pub(super) fn copy(&mut self, cx: &mut Cx<'_>, m: &messages::Copy) -> Result<(), Failure> {
        self.submit(cx, m.stream, Op::Copy(Copy::line(m.dst, m.src, m.len)))?;
        let stream = self.stream(cx, m.stream)?;
        self.reads_host(stream, m.src);
        self.settle(stream, m.sync)
    }

    pub(super) fn copy_in(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyIn<'_>,
    ) -> Result<(), Failure> {
        let stream = self.stream(cx, m.stream)?;
        self.touched = true;
        let data = cx.bytes(m.data)?;
        let extent = Extent::line(data.len() as u64);
        self.gpu
            .upload(stream, Rows::line(m.dst), extent, &data)
            .map_err(failure)?;
        self.settle(stream, m.sync)
    }

    pub(super) fn copy_settled(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopySettled,
    ) -> Result<(), Failure> {
        self.settle(self.stream(cx, m.stream)?, 1)
    }

    pub(super) fn copy_placed(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyPlaced,
    ) -> Result<(), Failure> {
        self.stream(cx, m.stream)?;
        self.gpu.was_written(m.dst, m.len).map_err(failure)
    }

    pub(super) fn copy_out(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyOut,
    ) -> Result<Pending, Failure> {
        self.fetch(cx, m.stream, Rows::line(m.src), Extent::line(m.len))
    }

    fn fetch(
        &mut self,
        cx: &Cx<'_>,
        stream: u64,
        src: Rows,
        extent: Extent,
    ) -> Result<Pending, Failure> {
        // A reply is one frame; the client splits longer copies.
        if extent
            .bytes()
            .is_none_or(|bytes| bytes > CHUNK_BYTES_MAX as u64)
        {
            return Err(invalid(format!("{extent} asked for in one answer")));
        }
        let stream = self.stream(cx, stream)?;
        self.gpu
            .download(stream, src, extent)
            .map(pending)
            .map_err(failure)
    }

    pub(super) fn copy_box(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBox<'_>,
    ) -> Result<(), Failure> {
        let copy = self.box_copy(m.desc)?;
        self.submit(cx, m.stream, Op::Copy(copy))
    }

    pub(super) fn copy_box_in(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBoxIn<'_>,
    ) -> Result<(), Failure> {
        let desc = read_box(m.desc)?;
        if desc.src != BoxEnd::Packed {
            return Err(invalid(
                "a box copy in whose source does not travel with it",
            ));
        }
        let (dst, extent) = (self.destination(&desc)?, extent(&desc));
        let stream = self.stream(cx, m.stream)?;
        self.touched = true;
        self.gpu
            .upload(stream, dst, extent, &cx.bytes(m.data)?)
            .map_err(failure)?;
        self.settle(stream, m.sync)
    }

    pub(super) fn copy_box_out(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBoxOut<'_>,
    ) -> Result<Pending, Failure> {
        let desc = read_box(m.desc)?;
        if desc.dst != BoxEnd::Packed {
            return Err(invalid("a box copy out whose destination does not travel"));
        }
        let src = self.source(&desc)?;
        self.fetch(cx, m.stream, src, extent(&desc))
    }

    pub(super) fn set(&mut self, cx: &Cx<'_>, stream: u64, set: Set) -> Result<(), Failure> {
        self.submit(cx, stream, Op::Set(set))
    }
}

fn read_box(bytes: &[u8]) -> Result<CopyBox, Failure> {
    doc::from_bytes(bytes).map_err(|e| invalid(format!("a box copy that cannot be read: {e}")))
}

fn extent(desc: &CopyBox) -> Extent {
    Extent {
        width: desc.width,
        height: desc.height,
        depth: desc.depth,
    }
}

impl Soft {
    /// Decodes a copy whose ends are both memory of this process.
    pub(super) fn box_copy(&self, bytes: &[u8]) -> Result<Copy, Failure> {
        self.box_of(&read_box(bytes)?)
    }

    pub(super) fn box_of(&self, desc: &CopyBox) -> Result<Copy, Failure> {
        Ok(Copy {
            dst: self.destination(desc)?,
            src: self.source(desc)?,
            extent: extent(desc),
        })
    }

    fn source(&self, desc: &CopyBox) -> Result<Rows, Failure> {
        self.end(desc, desc.src, [desc.src_x, desc.src_y, desc.src_z])
    }

    fn destination(&self, desc: &CopyBox) -> Result<Rows, Failure> {
        self.end(desc, desc.dst, [desc.dst_x, desc.dst_y, desc.dst_z])
    }

    fn end(&self, desc: &CopyBox, end: BoxEnd, at: [u64; 3]) -> Result<Rows, Failure> {
        let [x, y, z] = at;
        match end {
            BoxEnd::Packed => Err(invalid("a box copy whose rows are not in the message")),
            BoxEnd::Array { array } => self.array_rows(array, desc, at),
            BoxEnd::Pitched {
                address,
                pitch_bytes,
                height,
            } => {
                let row = z.checked_mul(height).and_then(|rows| rows.checked_add(y));
                let first = row
                    .and_then(|row| row.checked_mul(pitch_bytes))
                    .and_then(|at| at.checked_add(x))
                    .and_then(|at| at.checked_add(address))
                    .ok_or_else(|| invalid("a box copy beyond the address space"))?;
                Ok(Rows {
                    address: first,
                    pitch_bytes,
                    slice_rows: height,
                })
            }
        }
    }
}
