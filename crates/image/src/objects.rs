//! Object files and static libraries of the host, as a linker gets them. The device code lies in
//! sections of the objects, as one fatbin after another.

use object::{
    LittleEndian as LE, ReadRef as _,
    elf::FileHeader64,
    read::{
        archive::ArchiveFile,
        elf::{FileHeader as _, SectionHeader as _},
    },
};

use crate::{Error, Image, cubin, fatbin, limits};

const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
/// Sections with fatbins: of code that is complete, and of code that is yet to be linked.
const SECTIONS: [&[u8]; 2] = [b".nv_fatbin", b"__nv_relfatbin"];
/// Fatbins in a section begin at multiples of this.
const ALIGN_BYTES: usize = 8;

/// Returns the images in a linker's input: those in a host object, in each member of a static
/// library, or the input itself, if it is an image. There may be none.
pub fn device_code(data: &[u8]) -> Result<Vec<&[u8]>, Error> {
    let mut found = Vec::new();
    if !data.starts_with(ARCHIVE_MAGIC) {
        add_images(data, &mut found)?;
        return Ok(found);
    }
    let archive = ArchiveFile::parse(data).map_err(unreadable)?;
    for member in archive.members() {
        let member = member.map_err(unreadable)?;
        // Other members, such as texts, are no business of a linker of device code.
        let bytes = member.data(data).map_err(unreadable)?;
        if is_elf(bytes) || Image::parse(bytes).is_ok() {
            add_images(bytes, &mut found)?;
        }
    }
    Ok(found)
}

fn add_images<'a>(data: &'a [u8], found: &mut Vec<&'a [u8]>) -> Result<(), Error> {
    if !is_elf(data) || cubin::is_cubin(data) {
        return add(data, found);
    }
    let header = FileHeader64::<LE>::parse(data).map_err(unreadable)?;
    let endian = header.endian().map_err(unreadable)?;
    let sections = header.sections(endian, data).map_err(unreadable)?;
    for section in sections.iter() {
        let name = sections.section_name(endian, section).map_err(unreadable)?;
        if SECTIONS.contains(&name) {
            add_fatbins(section.data(endian, data).map_err(unreadable)?, found)?;
        }
    }
    Ok(())
}

fn add_fatbins<'a>(section: &'a [u8], found: &mut Vec<&'a [u8]>) -> Result<(), Error> {
    let mut rest = section;
    while rest.len() >= fatbin::HEADER_BYTES {
        let bytes = fatbin::extent(rest)?;
        let whole = rest.read_bytes_at(0, bytes as u64);
        add(whole.map_err(|()| cut_short(bytes, rest.len()))?, found)?;
        let next = bytes.next_multiple_of(ALIGN_BYTES);
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(())
}

fn add<'a>(image: &'a [u8], found: &mut Vec<&'a [u8]>) -> Result<(), Error> {
    if found.len() == limits::PRELINKED_MAX {
        return Err(Error::TooLarge {
            what: "images of a linker's input",
            offset: 0,
            found: found.len() as u64 + 1,
            max: limits::PRELINKED_MAX as u64,
        });
    }
    found.push(image);
    Ok(())
}

fn is_elf(data: &[u8]) -> bool {
    data.starts_with(&cubin::MAGIC.to_le_bytes())
}

fn cut_short(needed: usize, available: usize) -> Error {
    Error::Truncated {
        what: "fatbin container",
        offset: 0,
        needed: needed as u64,
        available: available as u64,
    }
}

fn unreadable(error: object::Error) -> Error {
    Error::Library(error.to_string())
}
