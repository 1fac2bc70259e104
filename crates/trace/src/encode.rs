//! Packs records into blocks.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use crate::{
    error::Error,
    format::{
        BlockHeader, KIND_ABOUT, KIND_END, KIND_RECORDS, MAGIC, TAG_LOST, TAG_NAME, VERSION,
        checksum, put, put_record,
    },
    limits::{BLOCK_BYTES, BLOCK_BYTES_MAX, NAME_BYTES_MAX},
    record::{About, Record, Trace},
};

/// Encodes a whole recording as a file's bytes.
pub fn to_bytes(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    let _ = write_to(&mut out, trace);
    out
}

/// Writes a whole recording over an existing file.
pub fn write(path: &Path, trace: &Trace) -> Result<(), Error> {
    let written =
        File::create(path).and_then(|file| write_to(&mut io::BufWriter::new(file), trace));
    written.map_err(|error| Error::io(path, &error))
}

fn write_to(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let mut encoder = Encoder::new(out, &trace.about)?;
    // All names, so that each keeps its number.
    for (number, name) in trace.names.iter().enumerate() {
        encoder.define(number as u32, name)?;
    }
    for record in &trace.records {
        encoder.record(record, |_| "?")?;
    }
    encoder.lost(trace.lost)?;
    match trace.complete {
        true => encoder.end()?,
        false => encoder.flush()?,
    }
    encoder.out.flush()
}

/// Packs records into blocks and writes each when it is full.
pub(crate) struct Encoder<W> {
    pub(crate) out: W,
    plain: Vec<u8>,
    stored: Vec<u8>,
    last: u64,
    /// For each name its number in the file plus one; 0 if the file does not have it yet.
    given: Vec<u32>,
    names: u32,
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(mut out: W, about: &About) -> io::Result<Encoder<W>> {
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        out.write_all(&head)?;
        let mut encoder = Encoder {
            out,
            plain: Vec::with_capacity(BLOCK_BYTES),
            stored: Vec::new(),
            last: 0,
            given: Vec::new(),
            names: 0,
        };
        encoder.about(about)?;
        Ok(encoder)
    }

    pub(crate) fn about(&mut self, about: &About) -> io::Result<()> {
        self.flush()?;
        let mut document = serde_json::to_vec(about)?;
        if document.len() > BLOCK_BYTES_MAX {
            // A command line may be of any length.
            let mut shorter = about.clone();
            shorter.argv.truncate(1);
            document = serde_json::to_vec(&shorter)?;
        }
        self.block(KIND_ABOUT, &document)
    }

    /// Adds a record; calls `text` for a name that the file does not have yet.
    pub(crate) fn record<'t>(
        &mut self,
        record: &Record,
        text: impl FnOnce(u32) -> &'t str,
    ) -> io::Result<()> {
        let name = record.name();
        if self.given(name) == 0 {
            self.define(name, text(name))?;
        }
        let name = self.given(name) - 1;
        put_record(&mut self.plain, &mut self.last, record, name.into());
        self.flush_if_full()
    }

    fn given(&self, name: u32) -> u32 {
        self.given.get(name as usize).copied().unwrap_or(0)
    }

    fn define(&mut self, name: u32, text: &str) -> io::Result<()> {
        let index = name as usize;
        if self.given.len() <= index {
            self.given.resize(index + 1, 0);
        }
        self.names += 1;
        self.given[index] = self.names;
        put_name(&mut self.plain, text);
        self.flush_if_full()
    }

    /// Adds that `count` records are missing here.
    pub(crate) fn lost(&mut self, count: u64) -> io::Result<()> {
        if count > 0 {
            self.plain.push(TAG_LOST);
            put(&mut self.plain, count);
        }
        self.flush_if_full()
    }

    /// Writes the buffered records as a block.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.plain.is_empty() {
            return Ok(());
        }
        let plain = std::mem::take(&mut self.plain);
        let written = self.block(KIND_RECORDS, &plain);
        self.plain = plain;
        self.plain.clear();
        // Each block can be read by itself.
        self.last = 0;
        written
    }

    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.flush()?;
        self.block(KIND_END, &[])
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        match self.plain.len() >= BLOCK_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn block(&mut self, kind: u32, plain: &[u8]) -> io::Result<()> {
        self.stored.clear();
        self.stored
            .resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
        let len = lz4_flex::block::compress_into(plain, &mut self.stored)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let stored = &self.stored[..len];
        let header = BlockHeader {
            kind,
            stored_bytes: u32::try_from(len).map_err(io::Error::other)?,
            plain_bytes: u32::try_from(plain.len()).map_err(io::Error::other)?,
            checksum: checksum(stored),
        };
        // Written at once, since a program may be killed between two writes.
        let mut piece = header.encode().to_vec();
        piece.extend_from_slice(stored);
        self.out.write_all(&piece)
    }
}

/// Encodes a recording's records as a block has them before compression.
pub(crate) fn plain(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    let mut last = 0;
    for name in &trace.names {
        put_name(&mut out, name);
    }
    for record in &trace.records {
        put_record(&mut out, &mut last, record, record.name().into());
    }
    out
}

fn put_name(out: &mut Vec<u8>, text: &str) {
    let text = cut(text);
    out.push(TAG_NAME);
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Makes a file with one block of each kind that holds these bytes, uncompressed and compressed;
/// for the fuzzer.
pub(crate) fn blocks_of(bytes: &[u8], plain_bytes: u32) -> [Vec<u8>; 3] {
    let file = |kind, stored: &[u8], plain_bytes| {
        let header = BlockHeader {
            kind,
            stored_bytes: stored.len() as u32,
            plain_bytes,
            checksum: checksum(stored),
        };
        let mut file = MAGIC.to_vec();
        file.extend(VERSION.to_le_bytes());
        file.extend(header.encode());
        file.extend_from_slice(stored);
        file
    };
    let packed = lz4_flex::block::compress(bytes);
    [
        file(KIND_RECORDS, &packed, bytes.len() as u32),
        file(KIND_ABOUT, &packed, bytes.len() as u32),
        file(KIND_RECORDS, bytes, plain_bytes),
    ]
}

/// Returns as much of a name as may be stored.
fn cut(text: &str) -> &str {
    let mut len = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        read::{Item, Reader},
        record::{Mark, Work},
    };

    const RECORDS: usize = 60;

    /// A file like a running program's: a block after every seven records.
    fn file() -> (Vec<u8>, Vec<String>) {
        let names: Vec<String> = (0..10).map(|n| format!("name {n}")).collect();
        let mut encoder = Encoder::new(Vec::new(), &About::default()).unwrap();
        let mut written = Vec::new();
        for n in 0..RECORDS {
            let name = (n * 7 % names.len()) as u32;
            let record = match n % 2 {
                0 => Record::Mark(Mark {
                    name,
                    thread: 1,
                    at_ns: n as u64,
                    is_end: n % 4 == 0,
                }),
                _ => Record::Work(Work {
                    kind: crate::GpuWork::Kernel,
                    name,
                    device: 0,
                    stream: 1,
                    start_ns: 1_000 - n as u64,
                    duration_ns: 5,
                    bytes: 0,
                    correlation: n as u32,
                }),
            };
            encoder
                .record(&record, |name| &names[name as usize])
                .unwrap();
            written.push(said(&record, &names[name as usize]));
            if n % 7 == 6 {
                encoder.flush().unwrap();
            }
        }
        encoder.end().unwrap();
        (encoder.out, written)
    }

    /// Formats a record without the number of its name, which differs between files.
    fn said(record: &Record, name: &str) -> String {
        let mut record = *record;
        match &mut record {
            Record::Call(call) => call.function = 0,
            Record::Work(work) => work.name = 0,
            Record::Mark(mark) => mark.name = 0,
        }
        format!("{name} {record:?}")
    }

    #[test]
    fn a_file_that_was_cut_anywhere_gives_what_is_whole() {
        let (file, written) = file();
        let mut counts = Vec::new();
        for len in 0..=file.len() {
            let mut reader = match Reader::new(&file[..len]) {
                Ok(reader) => reader,
                Err(Error::Empty | Error::Short { .. }) if len < 12 => continue,
                Err(error) => panic!("cut at {len}: {error}"),
            };
            let (mut read, mut is_complete) = (Vec::new(), false);
            while let Some(item) = reader.next().unwrap() {
                match item {
                    Item::Record(record) => {
                        let name = &reader.names[record.name() as usize];
                        read.push(said(&record, name));
                    }
                    Item::End => is_complete = true,
                    _ => {}
                }
            }
            assert_eq!(read, written[..read.len()], "cut at {len}");
            assert_eq!(is_complete, len == file.len());
            counts.push(read.len());
        }
        assert!(counts.is_sorted());
        counts.dedup();
        // Every block counts as soon as it is whole.
        assert_eq!(counts, [0, 7, 14, 21, 28, 35, 42, 49, 56, 60]);
    }
}
