use crate::{
    Arch, Error, cubin, fatbin, fatbin::Entry, fatbin::EntryKind, ptx, raw::WRAPPER_MAGIC,
};

/// The form of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Fatbin,
    Cubin,
    Ptx,
}

/// A parsed image. A bare cubin or PTX text is an image with one entry.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    format: Format,
    entries: Vec<Entry<'a>>,
}

/// The code that a driver would choose for a device.
#[derive(Debug, Clone, Copy)]
pub enum Choice<'i, 'a> {
    /// Machine code that runs without compilation.
    Cubin(&'i Entry<'a>),
    /// PTX, which must be compiled for the device first.
    Ptx(&'i Entry<'a>),
}

impl<'i, 'a> Choice<'i, 'a> {
    pub fn entry(self) -> &'i Entry<'a> {
        match self {
            Self::Cubin(entry) | Self::Ptx(entry) => entry,
        }
    }
}

impl<'a> Image<'a> {
    /// Parses an image, whose form follows from its first bytes. Bytes after a container's end are
    /// ignored, as in the driver, which does not learn the length of the memory that it gets.
    pub fn parse(data: &'a [u8]) -> Result<Self, Error> {
        let magic = data.first_chunk::<4>().copied().map(u32::from_le_bytes);
        match magic {
            Some(fatbin::MAGIC) => Ok(Self {
                format: Format::Fatbin,
                entries: fatbin::parse(data)?,
            }),
            Some(cubin::MAGIC) => Ok(Self {
                format: Format::Cubin,
                entries: vec![bare_cubin(data)?],
            }),
            Some(WRAPPER_MAGIC) => Err(Error::WrapperWithoutMemory),
            _ if ptx::looks_like_text(data) => Ok(Self {
                format: Format::Ptx,
                entries: vec![bare_ptx(data)?],
            }),
            _ => Err(Error::NotAnImage {
                found: data.get(..4).unwrap_or(data).to_vec(),
            }),
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Chooses the code for a device: the machine code of the closest architecture that runs there,
    /// otherwise the highest PTX that can be compiled for it. Among equals the more specific target
    /// wins, then the first.
    pub fn select(&self, major: u32, minor: u32) -> Result<Choice<'_, 'a>, Error> {
        let device = Arch::device(major, minor);
        let cubin =
            best(self.entries.iter().filter(|entry| {
                entry.kind == EntryKind::Cubin && entry.arch.cubin_runs_on(device)
            }));
        match cubin {
            Some(entry) => Ok(Choice::Cubin(entry)),
            None => self
                .best_ptx(device)
                .map(Choice::Ptx)
                .ok_or_else(|| self.no_binary(device, false)),
        }
    }

    /// Chooses the PTX for a device that runs nothing else.
    pub fn select_ptx(&self, major: u32, minor: u32) -> Result<&Entry<'a>, Error> {
        let device = Arch::device(major, minor);
        self.best_ptx(device)
            .ok_or_else(|| self.no_binary(device, true))
    }

    fn best_ptx(&self, device: Arch) -> Option<&Entry<'a>> {
        best(
            self.entries
                .iter()
                .filter(|entry| entry.kind == EntryKind::Ptx && entry.arch.ptx_runs_on(device)),
        )
    }

    fn no_binary(&self, device: Arch, ptx_only: bool) -> Error {
        Error::NoBinary {
            device,
            ptx_only,
            found: self.entries.iter().map(ToString::to_string).collect(),
        }
    }
}

fn best<'i, 'a: 'i>(entries: impl Iterator<Item = &'i Entry<'a>>) -> Option<&'i Entry<'a>> {
    entries.reduce(|best, entry| if entry.arch > best.arch { entry } else { best })
}

fn bare_cubin(data: &[u8]) -> Result<Entry<'_>, Error> {
    let len = cubin::extent(data)?;
    let data = crate::read::bytes(data, 0, len, "cubin")?;
    Ok(Entry::bare(EntryKind::Cubin, cubin::arch(data)?, data))
}

fn bare_ptx(data: &[u8]) -> Result<Entry<'_>, Error> {
    let text = ptx::decode(data)?;
    let header = ptx::scan_header(text)?;
    let mut entry = Entry::bare(EntryKind::Ptx, header.target, text.as_bytes());
    entry.version = header.version;
    Ok(entry)
}
