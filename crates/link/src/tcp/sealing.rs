//! Encrypts what a tcp link sends.

use std::io::IoSlice;

use outboard_trust::{KernelSealer, RECORD_BYTES_MAX, Sealer};

use crate::Error;

/// Encrypted bytes that go to the kernel in one call, at least, if there are so many.
const SEND_BYTES: usize = 256 << 10;

/// Encryption of what a link sends.
pub(super) enum Seal {
    /// None: the connection is open.
    Open,
    /// By this process.
    Own(Box<Sealing>),
    /// By the kernel.
    Kernel(Box<KernelSealer>),
}

pub(super) struct Sealing {
    sealer: Sealer,
    /// Short pieces that become one record.
    joined: Vec<u8>,
    sealed: Vec<u8>,
}

impl Sealing {
    pub(super) fn new(sealer: Sealer) -> Box<Sealing> {
        Box::new(Sealing {
            sealer,
            joined: Vec::new(),
            sealed: Vec::new(),
        })
    }

    /// Encrypts all of `slices`, and gives them to `send` in order. After an error of `send` the
    /// connection is of no use.
    pub(super) fn seal(
        &mut self,
        slices: &[IoSlice<'_>],
        mut send: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.joined.clear();
        self.sealed.clear();
        for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                // A whole record needs no copy before its encryption.
                if self.joined.is_empty() && rest.len() >= RECORD_BYTES_MAX {
                    self.sealer
                        .seal(&rest[..RECORD_BYTES_MAX], &mut self.sealed)?;
                    rest = &rest[RECORD_BYTES_MAX..];
                } else {
                    let count = rest.len().min(RECORD_BYTES_MAX - self.joined.len());
                    self.joined.extend_from_slice(&rest[..count]);
                    rest = &rest[count..];
                    if self.joined.len() == RECORD_BYTES_MAX {
                        self.seal_joined()?;
                    }
                }
                if self.sealed.len() >= SEND_BYTES {
                    send(&self.sealed)?;
                    self.sealed.clear();
                }
            }
        }
        self.seal_joined()?;
        match self.sealed.is_empty() {
            true => Ok(()),
            false => send(&self.sealed),
        }
    }

    fn seal_joined(&mut self) -> Result<(), Error> {
        self.sealer.seal(&self.joined, &mut self.sealed)?;
        self.joined.clear();
        Ok(())
    }
}
