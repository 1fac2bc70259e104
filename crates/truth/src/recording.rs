//! Results of a device in a file: postcard, compressed with zstd.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::job::Outcome;

/// The results of one device.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The device's name, and the driver's version.
    pub device: String,
    pub entries: BTreeMap<u64, Outcome>,
    /// Random programs with their text, because their generator may change.
    pub programs: Vec<Recorded>,
}

/// A random program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    pub seed: u64,
    pub body: String,
    /// With the driver's default optimisation.
    pub outcome: Outcome,
    /// Without optimisation. If the two differ, the driver's optimiser does not preserve the
    /// program's meaning.
    pub unoptimised: Outcome,
}

/// Why a recording cannot be used.
#[derive(Debug, Error)]
pub enum RecordingError {
    #[error("cannot be read or written: {0}")]
    Io(#[from] io::Error),
    #[error("is not zstd: {0}")]
    Zstd(String),
    #[error("is not a recording: {0}")]
    Format(#[from] postcard::Error),
}

impl Recording {
    pub fn encode(&self) -> Result<Vec<u8>, RecordingError> {
        let plain = postcard::to_stdvec(self)?;
        Ok(compress_to_vec(plain.as_slice(), CompressionLevel::Fastest))
    }

    pub fn decode(bytes: &[u8]) -> Result<Recording, RecordingError> {
        let mut plain = Vec::new();
        let mut decoder =
            StreamingDecoder::new(bytes).map_err(|e| RecordingError::Zstd(e.to_string()))?;
        decoder.read_to_end(&mut plain)?;
        Ok(postcard::from_bytes(&plain)?)
    }

    pub fn write(&self, path: &Path) -> Result<(), RecordingError> {
        Ok(std::fs::write(path, self.encode()?)?)
    }

    pub fn read(path: &Path) -> Result<Recording, RecordingError> {
        Recording::decode(&std::fs::read(path)?)
    }

    /// Adds another run's results, and the name of its device if it differs.
    pub fn absorb(&mut self, other: Recording) {
        if self.device != other.device {
            let count = other.entries.len();
            self.device += &format!("; {} ({count} forms)", other.device);
        }
        self.entries.extend(other.entries);
    }

    /// Returns the device's outcome for a job.
    pub fn outcome(&self, key: u64) -> Option<&Outcome> {
        self.entries.get(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_kept_and_named() {
        let of = |device: &str, key| Recording {
            device: device.into(),
            entries: BTreeMap::from([(key, Outcome::Results(vec![key as u8]))]),
            programs: Vec::new(),
        };
        let mut recording = of("one", 1);
        recording.absorb(of("one", 2));
        assert_eq!(recording.device, "one");
        recording.absorb(of("another", 3));
        assert_eq!(recording.device, "one; another (1 forms)");
        for key in 1..=3 {
            assert!(recording.outcome(key).is_some(), "{key}");
        }
    }

    #[test]
    fn what_is_written_is_read() -> Result<(), RecordingError> {
        let recording = Recording {
            device: "a device".into(),
            entries: BTreeMap::from([
                (7, Outcome::Results(vec![1; 100_000])),
                (8, Outcome::Refused("no".into())),
            ]),
            programs: vec![Recorded {
                seed: 3,
                body: "exit;".into(),
                outcome: Outcome::Digest(7, vec![1]),
                unoptimised: Outcome::Digest(8, vec![1]),
            }],
        };
        let bytes = recording.encode()?;
        assert!(bytes.len() < 2_000);
        assert_eq!(Recording::decode(&bytes)?, recording);
        assert!(Recording::decode(&bytes[..20]).is_err());
        Ok(())
    }
}
