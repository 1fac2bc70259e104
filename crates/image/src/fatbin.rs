//! The fatbin container: a header, then entries one after the other.
//!
//! ```text
//!  container   u32 magic 0xBA55ED50 · u16 version 1 · u16 header bytes 16 · u64 bytes of entries
//!  entry       u16 kind · u16 version · u32 header bytes
//!              u64 payload bytes (padded: the step to the next entry)
//!              u32 compressed bytes · u32 options offset · u16 minor · u16 major
//!              u32 architecture
//!              u32 name offset · u32 name bytes · u64 flags · u64 0 · u64 uncompressed bytes
//! ```

use std::{borrow::Cow, fmt, io::Read};

use crate::{Arch, Error, Kernel, Module, Variant, cubin, limits, ptx, read};

pub(crate) const MAGIC: u32 = 0xBA55_ED50;
/// Bytes of a container from which its length is known.
pub(crate) const HEADER_BYTES: usize = 16;
const VERSION: u16 = 1;

const ENTRY_HEADER_BYTES: usize = 64;
const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// `sm_90a`: set in every entry that nvcc builds for an `a` target, cubin and PTX alike.
const FLAG_SPECIFIC: u64 = 0x10_0000;
/// `sm_100f`: set in every entry for an `f` target.
const FLAG_FAMILY: u64 = 0x20_0000;

/// Content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    Ptx,
    Cubin,
    /// Link-time intermediate code (8), whose bytes are scrambled, and anything else that a toolkit
    /// may add.
    Other(u16),
}

/// Compression of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    Plain,
    /// A raw LZ4 block (`--compress-mode=speed`).
    Lz4,
    /// A Zstandard frame (`--compress-mode=balance` and `size`).
    Zstd,
}

/// One cubin or PTX text of an image, still compressed.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    pub kind: EntryKind,
    pub arch: Arch,
    /// PTX ISA version or cubin format version, as major and minor; zeroes for a bare cubin.
    pub version: (u32, u32),
    /// The container's flags as stored: see [`Encoding`].
    pub flags: u64,
    pub encoding: Encoding,
    /// The source file, in debug builds.
    pub name: Option<&'a str>,
    stored: &'a [u8],
    plain_bytes: usize,
    /// Offset of the stored bytes in the container, for errors.
    offset: usize,
}

impl<'a> Entry<'a> {
    /// Makes an entry of an image without a container.
    pub(crate) fn bare(kind: EntryKind, arch: Arch, stored: &'a [u8]) -> Self {
        Self {
            kind,
            arch,
            version: (0, 0),
            flags: 0,
            encoding: Encoding::Plain,
            name: None,
            stored,
            plain_bytes: stored.len(),
            offset: 0,
        }
    }

    /// The bytes as stored in the image.
    pub fn stored(&self) -> &'a [u8] {
        self.stored
    }

    /// Size after decompression, as the container claims it.
    pub fn plain_bytes(&self) -> usize {
        self.plain_bytes
    }

    /// Returns the cubin or PTX itself, decompressed at every call if it is compressed. PTX comes
    /// without its NUL padding.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, Error> {
        let plain = match self.encoding {
            Encoding::Plain => Cow::Borrowed(self.stored),
            Encoding::Lz4 => Cow::Owned(self.lz4()?),
            Encoding::Zstd => Cow::Owned(self.zstd()?),
        };
        Ok(match (self.kind, plain) {
            (EntryKind::Ptx, Cow::Borrowed(text)) => Cow::Borrowed(ptx::without_padding(text)),
            (EntryKind::Ptx, Cow::Owned(mut text)) => {
                text.truncate(ptx::without_padding(&text).len());
                Cow::Owned(text)
            }
            (_, plain) => plain,
        })
    }

    /// Reads what the entry says of its kernels and variables.
    pub fn module(&self) -> Result<Module, Error> {
        match self.kind {
            EntryKind::Cubin => cubin::parse(&self.bytes()?),
            EntryKind::Ptx => Ok(ptx::scan(ptx::decode(&self.bytes()?)?)?.into()),
            EntryKind::Other(kind) => Err(Error::NoKernelList { kind }),
        }
    }

    pub fn kernels(&self) -> Result<Vec<Kernel>, Error> {
        self.module().map(|module| module.kernels)
    }

    fn lz4(&self) -> Result<Vec<u8>, Error> {
        // An LZ4 block cannot expand more than 255 times: a larger claim is a lie and must not be
        // allocated.
        let plain_bytes_max = self.stored.len().saturating_mul(255);
        if self.plain_bytes > plain_bytes_max {
            let found = self.plain_bytes as u64;
            return Err(Error::TooLarge {
                what: "LZ4 uncompressed size",
                offset: self.offset,
                found,
                max: plain_bytes_max as u64,
            });
        }
        let mut plain = vec![0; self.plain_bytes];
        let written = lz4_flex::block::decompress_into(self.stored, &mut plain)
            .map_err(|error| self.decompress_error("LZ4", &error))?;
        self.check_size("LZ4", written)?;
        Ok(plain)
    }

    fn zstd(&self) -> Result<Vec<u8>, Error> {
        let decoder = ruzstd::decoding::StreamingDecoder::new(self.stored)
            .map_err(|error| self.decompress_error("zstd", &error))?;
        // Grows by the bytes that are really decompressed, so that a false claim allocates nothing.
        let mut plain = Vec::new();
        decoder
            .take(self.plain_bytes as u64 + 1)
            .read_to_end(&mut plain)
            .map_err(|error| self.decompress_error("zstd", &error))?;
        self.check_size("zstd", plain.len())?;
        Ok(plain)
    }

    fn check_size(&self, method: &'static str, written: usize) -> Result<(), Error> {
        if written == self.plain_bytes {
            return Ok(());
        }
        let more = if written > self.plain_bytes {
            "at least "
        } else {
            ""
        };
        let reason = format!(
            "the header promises {} bytes, {more}{written} came out",
            self.plain_bytes
        );
        Err(Error::Decompress {
            offset: self.offset,
            method,
            reason,
        })
    }

    fn decompress_error(&self, method: &'static str, error: &dyn fmt::Display) -> Error {
        Error::Decompress {
            offset: self.offset,
            method,
            reason: error.to_string(),
        }
    }
}

/// `cubin sm_90a`, `PTX compute_80`: the form in which errors name the content of an image.
impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EntryKind::Cubin => write!(f, "cubin {}", self.arch),
            EntryKind::Ptx => write!(f, "PTX {}", self.arch.virtual_name()),
            EntryKind::Other(kind) => write!(f, "kind {kind} for {}", self.arch),
        }
    }
}

/// Bytes of a container, header included, by its first [`HEADER_BYTES`].
pub(crate) fn extent(header: &[u8]) -> Result<usize, Error> {
    let magic = read::u32(header, 0, "fatbin magic")?;
    if magic != MAGIC {
        return Err(malformed("fatbin magic", 0, "0xba55ed50", u64::from(magic)));
    }
    let version = read::u16(header, 4, "fatbin version")?;
    if version != VERSION {
        return Err(malformed("fatbin version", 4, "1", u64::from(version)));
    }
    let header_bytes = usize::from(read::u16(header, 6, "fatbin header size")?);
    if header_bytes < HEADER_BYTES {
        return Err(malformed(
            "fatbin header size",
            6,
            "at least 16",
            header_bytes as u64,
        ));
    }
    let body = read::u64(header, 8, "fatbin size")?;
    let body = read::size(
        body,
        limits::IMAGE_BYTES_MAX - header_bytes,
        8,
        "fatbin size",
    )?;
    Ok(header_bytes + body)
}

pub(crate) fn parse(data: &[u8]) -> Result<Vec<Entry<'_>>, Error> {
    let end = extent(data)?;
    let data = read::bytes(data, 0, end, "fatbin container")?;
    let mut offset = usize::from(read::u16(data, 6, "fatbin header size")?);
    let mut entries = Vec::new();
    while offset < end {
        if entries.len() == limits::ENTRIES_MAX {
            let max = limits::ENTRIES_MAX as u64;
            return Err(Error::TooLarge {
                what: "fatbin entry count",
                offset,
                found: max + 1,
                max,
            });
        }
        let (entry, next) = parse_entry(data, offset)?;
        entries.push(entry);
        offset = next;
    }
    Ok(entries)
}

/// Parses the entry at `offset`; returns also the offset of the next one.
fn parse_entry(data: &[u8], offset: usize) -> Result<(Entry<'_>, usize), Error> {
    let header = read::bytes(data, offset, ENTRY_HEADER_BYTES, "fatbin entry header")?;
    let u16_at = |at| read::u16(header, at, "fatbin entry header");
    let u32_at = |at| read::u32(header, at, "fatbin entry header");
    let u64_at = |at| read::u64(header, at, "fatbin entry header");

    let kind = match u16_at(0)? {
        KIND_PTX => EntryKind::Ptx,
        KIND_ELF => EntryKind::Cubin,
        other => EntryKind::Other(other),
    };
    let header_bytes = read::size(
        u64::from(u32_at(4)?),
        data.len(),
        offset + 4,
        "fatbin entry header size",
    )?;
    if header_bytes < ENTRY_HEADER_BYTES {
        return Err(malformed(
            "fatbin entry header size",
            offset + 4,
            "at least 64",
            header_bytes as u64,
        ));
    }
    let whole_header = read::bytes(data, offset, header_bytes, "fatbin entry header")?;
    let payload_bytes = read::size(
        u64_at(8)?,
        data.len(),
        offset + 8,
        "fatbin entry payload size",
    )?;
    let payload_offset = offset + header_bytes;
    let payload = read::bytes(data, payload_offset, payload_bytes, "fatbin entry payload")?;

    let flags = u64_at(40)?;
    let encoding = encoding_of(flags, offset + 40)?;
    let (stored, plain_bytes) = match encoding {
        Encoding::Plain => (payload, payload_bytes),
        Encoding::Lz4 | Encoding::Zstd => compressed(header, payload, offset)?,
    };
    let variant = match (flags & FLAG_SPECIFIC != 0, flags & FLAG_FAMILY != 0) {
        (true, _) => Variant::Specific,
        (false, true) => Variant::Family,
        (false, false) => Variant::Base,
    };
    let entry = Entry {
        kind,
        arch: Arch::new(u32_at(28)?, variant),
        version: (u16_at(26)?.into(), u16_at(24)?.into()),
        flags,
        encoding,
        name: name(whole_header, u32_at(32)?, u32_at(36)?),
        stored,
        plain_bytes,
        offset: payload_offset,
    };
    Ok((entry, payload_offset + payload_bytes))
}

/// Returns how an entry is stored. `offset` is that of its flags.
fn encoding_of(flags: u64, offset: usize) -> Result<Encoding, Error> {
    match (flags & FLAG_LZ4 != 0, flags & FLAG_ZSTD != 0) {
        (false, false) => Ok(Encoding::Plain),
        (true, false) => Ok(Encoding::Lz4),
        (false, true) => Ok(Encoding::Zstd),
        (true, true) => Err(malformed(
            "fatbin entry flags",
            offset,
            "one compression method, not two",
            flags,
        )),
    }
}

/// Returns the compressed bytes of the entry at `offset`, and their number when plain.
fn compressed<'a>(
    header: &[u8],
    payload: &'a [u8],
    offset: usize,
) -> Result<(&'a [u8], usize), Error> {
    let stored = read::size(
        u64::from(read::u32(header, 16, "fatbin entry header")?),
        payload.len(),
        offset + 16,
        "fatbin entry compressed size",
    )?;
    let plain = read::size(
        read::u64(header, 56, "fatbin entry header")?,
        limits::ENTRY_BYTES_MAX,
        offset + 56,
        "fatbin entry uncompressed size",
    )?;
    let stored = read::bytes(payload, 0, stored, "fatbin entry payload")?;
    Ok((stored, plain))
}

/// Reads the name, which is a comment: a name that makes no sense is left out and is no error.
fn name(header: &[u8], offset: u32, len: u32) -> Option<&str> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    let bytes = header
        .get(start..end)
        .filter(|_| start >= ENTRY_HEADER_BYTES)?;
    let name = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    (!name.is_empty()).then_some(name)
}

fn malformed(what: &'static str, offset: usize, expected: &'static str, found: u64) -> Error {
    Error::Malformed {
        what,
        offset,
        expected,
        found,
    }
}
