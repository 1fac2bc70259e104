//! Documents too long for a packet: files in memory that nobody can change, passed between the
//! server's own processes.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::fs::{MemfdFlags, SealFlags};

/// Writes a document to a sealed file, which any number of processes can read.
pub(super) fn seal(document: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("outboard-document", flags)?);
    file.write_all(document)?;
    let seals = SealFlags::SEAL | SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    rustix::fs::fcntl_add_seals(file.as_fd(), seals)?;
    Ok(file.into())
}

/// Reads what [`seal`] wrote, at explicit offsets because other processes share the file position.
pub(super) fn read(fd: OwnedFd, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    let len = file.metadata()?.len().min(bytes_max);
    let mut document = vec![0; len as usize];
    file.read_exact_at(&mut document, 0)?;
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_by_many_and_changed_by_none() {
        let sealed = seal(b"facts").unwrap();
        for _ in 0..2 {
            let inherited = sealed.try_clone().unwrap();
            assert_eq!(read(inherited, 100).unwrap(), b"facts");
        }
        let file = File::from(sealed);
        assert!(file.write_all_at(b"F", 0).is_err());
        assert!(file.set_len(0).is_err());
    }
}
