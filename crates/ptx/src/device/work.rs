//! Operations of streams: launches, copies, memsets, waits on memory.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;

use super::{
    by_kernel::{End, Run},
    error::{Cause, Error, Stuck},
    event::EventId,
    graph::{Graph, GraphId},
    plan::Branch,
};
use crate::{error::Fault, execution::Execution, memory::Memory};

/// Length up to which the thread that finds a memory operation ready runs it: waking another thread
/// costs more.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Interval, in bytes, at which a long operation releases the memory's lock and checks whether it
/// was cancelled.
const CHUNK_BYTES: u64 = 4 << 20;
/// Length of the buffer that a memset fills with its value and writes repeatedly, in bytes.
const PATTERN_BYTES_MAX: u64 = 64 << 10;

/// The code that a launch runs: a kernel of the engine, or a closure in tests.
pub trait Code: Send + Sync {
    fn name(&self) -> &str;
    /// Runs the whole grid and returns when it is done, or soon after it is cancelled.
    fn run(&self, launch: &Launch, running: &Running<'_>) -> Result<(), Fault>;
}

/// The surroundings of a launch that runs.
pub struct Running<'r> {
    /// Set to end it.
    pub cancel: &'r AtomicBool,
    /// The graph's execution that it belongs to.
    pub execution: Option<&'r dyn Execution>,
}

/// One launch of a kernel.
#[derive(Clone)]
pub struct Launch {
    pub code: Arc<dyn Code>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub shared_bytes: u32,
    /// Whether all blocks are resident at once, so that they may wait for each other.
    pub cooperative: bool,
    pub params: Arc<[u8]>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}<<<{:?}, {:?}>>>",
            self.code.name(),
            self.grid,
            self.block
        )
    }
}

/// Rows in memory: `address` is the first byte of the first row of a box of rows and slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub address: u64,
    /// Distance between the starts of two rows.
    pub pitch_bytes: u64,
    /// Distance between the starts of two slices, in rows.
    pub slice_rows: u64,
}

impl Rows {
    /// Makes a single row.
    pub fn line(address: u64) -> Rows {
        Rows {
            address,
            pitch_bytes: 0,
            slice_rows: 1,
        }
    }

    /// Makes rows of `width` bytes without padding.
    pub fn packed(address: u64, extent: Extent) -> Rows {
        Rows {
            address,
            pitch_bytes: extent.width,
            slice_rows: extent.height,
        }
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.address + (z * self.slice_rows + y) * self.pitch_bytes
    }

    /// Returns the first byte and the length of the memory that the box covers; an error if its
    /// rows overlap or leave the address space.
    pub(super) fn span(&self, extent: Extent) -> Result<(u64, u64), Error> {
        let wrong = || Error::InvalidValue(format!("a box of {extent} at {self:x?}"));
        if extent.is_empty() {
            return Ok((self.address, 0));
        }
        let one_row = extent.height == 1 && extent.depth == 1;
        if !one_row && self.pitch_bytes < extent.width
            || extent.depth > 1 && self.slice_rows < extent.height
        {
            return Err(wrong());
        }
        let rows = (extent.depth - 1)
            .checked_mul(self.slice_rows)
            .and_then(|r| r.checked_add(extent.height - 1));
        let len = rows
            .and_then(|r| r.checked_mul(self.pitch_bytes))
            .and_then(|l| l.checked_add(extent.width))
            .ok_or_else(wrong)?;
        self.address.checked_add(len).ok_or_else(wrong)?;
        Ok((self.address, len))
    }
}

/// The size of a box: bytes, rows, slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Extent {
    pub fn line(bytes: u64) -> Extent {
        Extent {
            width: bytes,
            height: 1,
            depth: 1,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth)
    }

    fn rows(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.depth).flat_map(move |z| (0..self.height).map(move |y| (y, z)))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes by {} by {}",
            self.width, self.height, self.depth
        )
    }
}

/// A copy within device and registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub dst: Rows,
    pub src: Rows,
    pub extent: Extent,
}

impl Copy {
    pub fn line(dst: u64, src: u64, bytes: u64) -> Copy {
        Copy {
            dst: Rows::line(dst),
            src: Rows::line(src),
            extent: Extent::line(bytes),
        }
    }
}

/// A memset: `height` rows of `width` elements of `element_bytes` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    pub dst: u64,
    pub pitch_bytes: u64,
    pub value: u32,
    pub element_bytes: u32,
    pub width: u64,
    pub height: u64,
}

impl Set {
    pub(super) fn rows(&self) -> Result<(Rows, Extent), Error> {
        let wrong = |what: &str| Err(Error::InvalidValue(format!("memset: {what} ({self:x?})")));
        if !matches!(self.element_bytes, 1 | 2 | 4) {
            return wrong("elements have 1, 2 or 4 bytes");
        }
        let element = u64::from(self.element_bytes);
        if !self.dst.is_multiple_of(element)
            || self.height > 1 && !self.pitch_bytes.is_multiple_of(element)
        {
            return wrong("the address or the pitch is not a multiple of the element");
        }
        let Some(width) = self.width.checked_mul(element) else {
            return wrong("too wide");
        };
        let rows = Rows {
            address: self.dst,
            pitch_bytes: self.pitch_bytes,
            slice_rows: self.height,
        };
        let extent = Extent {
            width,
            height: self.height,
            depth: 1,
        };
        Ok((rows, extent))
    }
}

/// An operation of `cuStreamWaitValue` or `cuStreamWriteValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueOp {
    pub address: u64,
    pub value: u64,
    /// Whether the word has 8 bytes; otherwise it has 4.
    pub wide: bool,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Write,
    /// Writes 8 bytes, unless the memory already holds a larger number.
    Raise,
    /// Waits until `memory - value`, as a signed number, is not negative.
    WaitGreaterOrEqual,
    WaitEqual,
    /// Waits until a bit of `value` is set in memory.
    WaitAnd,
    /// Waits until `memory | value` has a clear bit.
    WaitNor,
}

impl ValueOp {
    pub(super) fn bytes(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    /// Performs a write, or checks a wait; returns whether it is over.
    pub(super) fn step(&self, memory: &Memory) -> Result<bool, Stuck> {
        let bytes = self.bytes() as usize;
        if self.action == Action::Write {
            return touch(memory.write(self.address, &self.value.to_le_bytes()[..bytes]))
                .map(|()| true);
        }
        if self.action == Action::Raise {
            return touch(memory.raise(self.address, self.value)).map(|()| true);
        }
        let mut word = [0; 8];
        touch(memory.read(self.address, &mut word[..bytes]))?;
        let found = u64::from_le_bytes(word);
        let sign = if self.wide { 1 << 63 } else { 1 << 31 };
        let mask = if self.wide {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        Ok(match self.action {
            Action::WaitGreaterOrEqual => found.wrapping_sub(self.value) & sign == 0,
            Action::WaitEqual => found == self.value & mask,
            Action::WaitAnd => found & self.value & mask != 0,
            Action::WaitNor | Action::Write | Action::Raise => !(found | self.value) & mask != 0,
        })
    }
}

/// An operation submitted to a stream, or held by a graph's node.
#[derive(Clone, Debug)]
pub enum Op {
    Launch(Launch),
    Copy(Copy),
    Set(Set),
    Value(ValueOp),
    /// A function of the host program, by its number there.
    Host(u64),
    Empty,
    RecordEvent(EventId),
    WaitEvent(EventId),
    /// Operations on memory, one after the other.
    Batch(Arc<[ValueOp]>),
    Child(Body),
    Conditional(Conditional),
}

/// A graph inside a node.
#[derive(Clone, Debug)]
pub enum Body {
    /// A copy of the graph as it was when the node was made.
    Fixed(Box<Graph>),
    /// A graph of the device that can still be changed.
    Open(GraphId),
}

/// A node that runs one of its graphs once, repeatedly, or not at all.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// Address of the condition's value, which has 32 bits.
    pub word: u64,
    pub kind: ConditionalKind,
    pub bodies: Vec<Body>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalKind {
    /// Runs the first graph if the value is not 0; otherwise the second, if there is one.
    If,
    /// Runs the graph as long as the value is not 0.
    While,
    /// Runs the graph whose index is the value.
    Switch,
}

impl Conditional {
    /// Returns the index of the graph that a value of the condition chooses.
    pub(super) fn chosen(&self, value: u32) -> Option<usize> {
        let index = match self.kind {
            ConditionalKind::If => usize::from(value == 0),
            ConditionalKind::While if value == 0 => return None,
            ConditionalKind::While => 0,
            ConditionalKind::Switch => value as usize,
        };
        (index < self.bodies.len()).then_some(index)
    }
}

/// The work of a task.
#[derive(Debug)]
pub(super) enum Work {
    /// A launch, and the execution of a graph that it is of.
    Launch(Launch, Option<Arc<Run>>),
    Copy(Copy),
    Set(Set),
    Upload(Rows, Extent, Vec<u8>),
    Download(Rows, Extent, Arc<Downloaded>),
    Value(ValueOp),
    Host(u64),
    Record(Arc<Record>),
    Nothing,
    /// A conditional node.
    Branch {
        branch: Arc<Branch>,
        /// Whether one of its graphs has run.
        ran: bool,
        run: Option<Arc<Run>>,
    },
    /// The end of a graph's execution whose kernels may launch graphs.
    End(End),
    /// A change of the memory map that had to wait for running work.
    Map(Mapping),
    Unmap(u64),
}

/// Memory to map into the window, with its physical allocation and offset there, if it has one.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) backing: Option<(super::physical::Physical, u64)>,
}

/// The time at which an event was reached.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) at: OnceLock<Instant>,
}

/// Receives the bytes of a download.
#[derive(Debug, Default)]
pub(super) struct Downloaded(pub(super) Mutex<Option<Vec<u8>>>);

impl Work {
    /// Whether the thread that finds this ready runs it, rather than a runner.
    pub(super) fn is_short(&self) -> bool {
        let extent = match self {
            Work::Copy(copy) => copy.extent,
            Work::Upload(_, extent, _) | Work::Download(_, extent, _) => *extent,
            Work::Set(set) => match set.rows() {
                Ok((_, extent)) => extent,
                Err(_) => return true,
            },
            Work::Launch(..) | Work::Map(_) | Work::Unmap(_) => return false,
            Work::Value(_)
            | Work::Host(_)
            | Work::Record(_)
            | Work::Nothing
            | Work::End(_)
            | Work::Branch { .. } => return true,
        };
        extent
            .bytes()
            .is_some_and(|bytes| bytes <= INLINE_BYTES_MAX)
            && extent.height <= 64
            && extent.depth <= 64
    }

    /// Performs the work. Called without locks for long work, see [`Work::is_short`].
    pub(super) fn run(&self, memory: &Memory, cancel: &AtomicBool) -> Result<(), Stuck> {
        match self {
            Work::Launch(launch, run) => {
                let execution = run.as_deref().map(|run| run as &dyn Execution);
                let running = Running { cancel, execution };
                let result = launch.code.run(launch, &running);
                result.map_err(|fault| Stuck::from(&fault))
            }
            Work::Copy(Copy { dst, src, extent }) => rows(*extent, cancel, |y, z, at, len| {
                touch(memory.copy(dst.row(y, z) + at, src.row(y, z) + at, len))
            }),
            Work::Set(set) => run_set(set, memory, cancel),
            Work::Upload(dst, extent, data) => {
                let mut left = &data[..];
                rows(*extent, cancel, |y, z, at, len| {
                    let (now, later) = left.split_at(left.len().min(len as usize));
                    left = later;
                    touch(memory.write(dst.row(y, z) + at, now))
                })
            }
            Work::Download(src, extent, cell) => {
                let mut data = vec![0; extent.bytes().unwrap_or(0) as usize];
                let mut left = &mut data[..];
                rows(*extent, cancel, |y, z, at, len| {
                    let (now, later) = std::mem::take(&mut left).split_at_mut(len as usize);
                    left = later;
                    touch(memory.read(src.row(y, z) + at, now))
                })?;
                *cell.0.lock() = Some(data);
                Ok(())
            }
            Work::Value(op) => op.step(memory).map(|_| ()),
            Work::Record(record) => {
                let _ = record.at.set(Instant::now());
                Ok(())
            }
            Work::Map(mapping) => {
                // The range was checked at the call; only the host's memory can still run out here.
                mapping.apply(memory).map_err(|e| Stuck {
                    cause: Cause::LaunchFailed,
                    message: format!("mapping device memory: {e}"),
                })
            }
            Work::Unmap(address) => {
                if let Err(error) = memory.unmap(*address) {
                    tracing::error!(%error, "unmapping device memory");
                }
                Ok(())
            }
            Work::Host(_) | Work::Nothing | Work::End(_) | Work::Branch { .. } => Ok(()),
        }
    }
}

/// Visits a box row by row, long rows in pieces: `piece(y, z, offset in the row, bytes)`.
fn rows(
    extent: Extent,
    cancel: &AtomicBool,
    mut piece: impl FnMut(u64, u64, u64, u64) -> Result<(), Stuck>,
) -> Result<(), Stuck> {
    if extent.is_empty() {
        return Ok(());
    }
    for (y, z) in extent.rows() {
        let mut at = 0;
        while at < extent.width {
            if cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            let len = (extent.width - at).min(CHUNK_BYTES);
            piece(y, z, at, len)?;
            at += len;
        }
    }
    Ok(())
}

fn run_set(set: &Set, memory: &Memory, cancel: &AtomicBool) -> Result<(), Stuck> {
    let (dst, extent) = set.rows().map_err(|e| Stuck {
        cause: Cause::LaunchFailed,
        message: e.to_string(),
    })?;
    let element = &set.value.to_le_bytes()[..set.element_bytes as usize];
    let pattern = element
        .repeat((extent.width.min(PATTERN_BYTES_MAX) / u64::from(set.element_bytes)) as usize);
    rows(extent, cancel, |y, z, at, len| {
        let mut done = 0;
        while done < len {
            let now = (len - done).min(pattern.len() as u64);
            touch(memory.write(dst.row(y, z) + at + done, &pattern[..now as usize]))?;
            done += now;
        }
        Ok(())
    })
}

/// Turns a failed access into a fault. Ranges were checked at submission; memory unmapped since is
/// an illegal access, as on a GPU.
fn touch<T>(result: Result<T, crate::memory::MemoryError>) -> Result<T, Stuck> {
    result.map_err(|error| Stuck {
        cause: Cause::IllegalAddress,
        message: error.to_string(),
    })
}
