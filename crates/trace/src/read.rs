//! Reads a file block by block, each checked before it is used.

use std::{
    io::{self, BufReader, Read},
    path::Path,
};

use crate::{
    error::{Damage, Error},
    format::{
        BLOCK_HEADER_BYTES, BlockHeader, Bytes, HEAD_BYTES, KIND_ABOUT, KIND_END, KIND_RECORDS,
        MAGIC, TAG_LOST, TAG_NAME, VERSION, VERSION_MIN, VERSIONS, checksum,
    },
    limits::{BLOCK_BYTES_MAX, NAME_BYTES_MAX, NAMES_MAX, RECORDS_MAX},
    record::{About, Record, Trace},
};

/// Reads a recording. If the file was cut, all whole blocks are read and `complete` is false.
pub fn read(path: &Path) -> Result<Trace, Error> {
    let file = outboard_files::open(path).map_err(|error| Error::io(path, &error))?;
    match Reader::new(BufReader::new(file)).and_then(collect) {
        Err(Error::Io { what, .. }) => Err(Error::Io {
            path: path.into(),
            what,
        }),
        other => other,
    }
}

/// Reads a recording from memory.
pub fn read_bytes(bytes: &[u8]) -> Result<Trace, Error> {
    collect(Reader::new(bytes)?)
}

fn collect(mut reader: Reader<impl Read>) -> Result<Trace, Error> {
    let mut trace = Trace::default();
    while let Some(item) = reader.next()? {
        match item {
            Item::About(about) => trace.about = *about,
            Item::Record(record) => {
                if trace.records.len() >= RECORDS_MAX {
                    return Err(Error::TooLarge { what: "records" });
                }
                trace.records.push(record);
            }
            Item::Lost(count) => trace.lost = trace.lost.saturating_add(count),
            Item::End => trace.complete = true,
        }
    }
    trace.names = reader.names;
    trace.give_streams();
    // Threads' records are written one thread after the other. Records of equal times keep their
    // order.
    trace.records.sort_by_key(Record::end_ns);
    Ok(trace)
}

/// The content of a file, in its order.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    About(Box<About>),
    Record(Record),
    /// Number of records missing here.
    Lost(u64),
    /// The program has ended; no item follows.
    End,
}

/// Reads a file item by item, with one block at a time in memory.
pub struct Reader<R> {
    from: R,
    /// Names read so far, to which records refer.
    pub names: Vec<String>,
    block: u64,
    at: u64,
    plain: Vec<u8>,
    /// Bytes of the block that were read, and the last time read there.
    read: usize,
    last: u64,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(mut from: R) -> Result<Reader<R>, Error> {
        let mut head = [0; HEAD_BYTES];
        let len = read_up_to(&mut from, &mut head)?;
        if len == 0 {
            return Err(Error::Empty);
        }
        let magic = MAGIC.len().min(len);
        if head[..magic] != MAGIC[..magic] {
            return Err(Error::NotARecording);
        }
        if len < HEAD_BYTES {
            return Err(Error::Short {
                len,
                wanted: HEAD_BYTES,
            });
        }
        let file = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if !VERSIONS.contains(&file) {
            return Err(Error::Version {
                file,
                oldest: VERSION_MIN,
                ours: VERSION,
            });
        }
        Ok(Reader {
            from,
            names: Vec::new(),
            block: 0,
            at: HEAD_BYTES as u64,
            plain: Vec::new(),
            read: 0,
            last: 0,
            is_over: false,
        })
    }

    /// Returns the next item; `None` at the end of the file, or where it was cut.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if self.read < self.plain.len() {
                if let Some(item) = self
                    .next_in_block()
                    .map_err(|damage| self.damaged(damage))?
                {
                    return Ok(Some(item));
                }
                continue;
            }
            if self.is_over {
                return Ok(None);
            }
            match self.next_block()? {
                None => self.is_over = true,
                Some(KIND_RECORDS) => {}
                Some(KIND_ABOUT) => {
                    let plain = std::mem::take(&mut self.plain);
                    let about =
                        serde_json::from_slice(&plain).map_err(|_| self.damaged(Damage::About))?;
                    return Ok(Some(Item::About(about)));
                }
                Some(KIND_END) => {
                    self.is_over = true;
                    return Ok(Some(Item::End));
                }
                Some(_) => return Err(self.damaged(Damage::Kind)),
            }
        }
    }

    /// Decompresses the next whole block and returns its kind.
    fn next_block(&mut self) -> Result<Option<u32>, Error> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        if read_up_to(&mut self.from, &mut header)? < BLOCK_HEADER_BYTES {
            return Ok(None);
        }
        self.block += 1;
        let header = BlockHeader::decode(&header).map_err(|damage| self.damaged(damage))?;
        let (stored_bytes, plain_bytes) =
            (header.stored_bytes as usize, header.plain_bytes as usize);
        let stored_max = lz4_flex::block::get_maximum_output_size(BLOCK_BYTES_MAX);
        if plain_bytes > BLOCK_BYTES_MAX || stored_bytes > stored_max {
            return Err(self.damaged(Damage::TooLong));
        }
        let mut stored = vec![0; stored_bytes];
        if read_up_to(&mut self.from, &mut stored)? < stored_bytes {
            return Ok(None);
        }
        if checksum(&stored) != header.checksum {
            return Err(self.damaged(Damage::Checksum));
        }
        self.plain = vec![0; plain_bytes];
        let unpacked = lz4_flex::block::decompress_into(&stored, &mut self.plain);
        if unpacked.ok() != Some(plain_bytes) {
            return Err(self.damaged(Damage::Unpacking));
        }
        (self.read, self.last) = (0, 0);
        self.at += (BLOCK_HEADER_BYTES + stored_bytes) as u64;
        Ok(Some(header.kind))
    }

    /// Returns the next item of the current block; `None` for a name, which is kept.
    fn next_in_block(&mut self) -> Result<Option<Item>, Damage> {
        let mut bytes = Bytes {
            left: &self.plain[self.read..],
            last: self.last,
        };
        let item = match bytes.byte()? {
            TAG_NAME => {
                let len = usize::try_from(bytes.number()?).map_err(|_| Damage::Number)?;
                if len > NAME_BYTES_MAX || self.names.len() >= NAMES_MAX {
                    return Err(Damage::Number);
                }
                let text = bytes.take(len)?;
                let text = str::from_utf8(text).map_err(|_| Damage::Text)?;
                self.names.push(text.into());
                None
            }
            TAG_LOST => Some(Item::Lost(bytes.number()?)),
            tag => Some(Item::Record(bytes.record(tag, self.names.len())?)),
        };
        (self.read, self.last) = (self.plain.len() - bytes.left.len(), bytes.last);
        Ok(item)
    }

    fn damaged(&self, damage: Damage) -> Error {
        Error::Damaged {
            block: self.block,
            at: self.at,
            damage,
        }
    }
}

/// Fills `room` as far as the file goes.
fn read_up_to(from: &mut impl Read, room: &mut [u8]) -> Result<usize, Error> {
    let mut len = 0;
    while len < room.len() {
        match from.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(Error::Io {
                    path: Default::default(),
                    what: error.to_string(),
                });
            }
        }
    }
    Ok(len)
}
