//! Reasons why a file is not a recording, or cannot become one.

use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{}: {what}", path.display())]
    Io { path: PathBuf, what: String },
    #[error("the file is empty: nothing was recorded")]
    Empty,
    #[error("the file ends inside its first {wanted} bytes, at {len}: nothing was recorded")]
    Short { len: usize, wanted: usize },
    #[error("this is not a recording of Outboard")]
    NotARecording,
    #[error(
        "the recording has format version {file}, this release reads versions {oldest} to {ours}; use the release that made it"
    )]
    Version { file: u32, oldest: u32, ours: u32 },
    #[error("block {block} of the recording, at byte {at}, is damaged: {damage}")]
    Damaged { block: u64, at: u64, damage: Damage },
    #[error("the recording is too large: {what}")]
    TooLarge { what: &'static str },
    #[error("{} exists and is not a recording; give another name, or remove it", path.display())]
    Taken { path: PathBuf },
    #[error("the recording ends early: {what}")]
    Unfinished { what: String },
}

/// Damage of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Damage {
    #[error("the checksum of its header is wrong")]
    HeaderChecksum,
    #[error("the checksum of its contents is wrong")]
    Checksum,
    #[error("it has more bytes than a block may have")]
    TooLong,
    #[error("its contents do not unpack to the length it says")]
    Unpacking,
    #[error("it is of no kind that this version knows")]
    Kind,
    #[error("the description of what was recorded cannot be read")]
    About,
    #[error("a record ends early")]
    RecordEndsEarly,
    #[error("a record is of no kind that this version knows")]
    RecordKind,
    #[error("a record refers to a name that was not given")]
    Name,
    #[error("a name is not text")]
    Text,
    #[error("a number has more than 64 bits, or more than its place has")]
    Number,
}

impl Error {
    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Error {
        Error::Io {
            path: path.into(),
            what: error.to_string(),
        }
    }
}
