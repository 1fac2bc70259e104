//! A server's certificate. Its files are read when the server starts, when they have changed, and
//! when the server is told to. Files that cannot be used, or do not fit each other, change nothing.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tracing::{info, warn};

use super::certificates::{CertificateFileError, CertificateText};

/// Interval at which the files are looked at, if there are connections.
const LOOK: Duration = Duration::from_secs(1);

/// Files of a certificate and its private key, and what was read last.
pub struct CertificateFiles {
    chain: PathBuf,
    key: PathBuf,
    text: CertificateText,
    /// The files as they were when they were read.
    seen: [Option<Stamp>; 2],
    looked: Instant,
}

/// Inode, size and time of a file, by which a change is noticed.
type Stamp = (u64, u64, i64, i64);

impl CertificateFiles {
    /// Reads both files, and logs whose certificate it is.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, CertificateFileError> {
        let seen = [stamp(chain), stamp(key)];
        let text = CertificateText::read(chain, key)?;
        tell(&text);
        Ok(CertificateFiles {
            chain: chain.into(),
            key: key.into(),
            text,
            seen,
            looked: Instant::now(),
        })
    }

    /// Returns the certificate that is shown now.
    pub fn current(&mut self) -> &CertificateText {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if self.stamps() != self.seen {
                self.reload();
            }
        }
        &self.text
    }

    /// Reads the files again.
    pub fn reload(&mut self) {
        self.seen = self.stamps();
        match CertificateText::read(&self.chain, &self.key) {
            Ok(text) => {
                tell(&text);
                self.text = text;
            }
            Err(error) => warn!(%error, "the certificate before is used on"),
        }
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        [stamp(&self.chain), stamp(&self.key)]
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
}

/// Logs whose certificate it is and what is wrong with its dates.
fn tell(text: &CertificateText) {
    let Ok(certificate) = text.parse() else {
        return;
    };
    match certificate.fault_of_dates() {
        None => info!("{certificate}"),
        Some(fault) => warn!("{certificate}: it {fault}, and programs will refuse it"),
    }
}
