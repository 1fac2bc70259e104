//! The state file: a dump is written beside it and renamed, so it is whole or as it was.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest state file that is read.
pub(super) const STATE_BYTES_MAX: u64 = 16 << 30;

pub(super) fn write(path: &Path, dump: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // Who is connected to what is nobody else's business.
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&beside)?;
    file.write_all(dump)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Reads the file; `None` if there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(about) if about.len() > STATE_BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => fs::read(path).map(Some),
    }
}
