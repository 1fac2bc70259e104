//! Address of the adapters of a folder, which those of other folders have not: queue pairs and keys
//! have the same numbers in each folder, so that nothing else tells a peer from a stranger.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

pub(crate) type Gid = [u8; 16];

/// Name of the file in a folder that has the last bytes of its address.
const FILE: &str = "address";
/// Bytes of an address that are the folder's own.
const OWN: usize = 3;

/// Returns a folder's address, an IPv4 address of loopback as RoCE writes it. Its own bytes are
/// drawn by the first that asks.
pub(crate) fn of(folder: &Path) -> io::Result<Gid> {
    let path = folder.join(FILE);
    let own = own(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let [high, middle, low] = own;
    Ok([
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, high, middle, low,
    ])
}

fn own(path: &Path) -> io::Result<[u8; OWN]> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("this is no file"));
    }
    lock(&file)?;
    let mut own = [0; OWN];
    if file.read_exact(&mut own).is_err() {
        draw(&mut own)?;
        file.write_all_at(&own, 0)?;
    }
    Ok(own)
}

/// Waits for those who draw.
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn draw(own: &mut [u8; OWN]) -> io::Result<()> {
    // SAFETY: the buffer is there.
    match unsafe { libc::getrandom(own.as_mut_ptr().cast(), own.len(), 0) } {
        drawn if drawn == own.len() as isize => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
