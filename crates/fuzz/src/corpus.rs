//! Corpora: for each target the inputs that between them reach every place of its code that was
//! ever reached. One file a target, compressed with zstd: each input after its length, in 32 bits;
//! short ones first, so that the same inputs are the same bytes.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use ruzstd::decoding::StreamingDecoder;
#[cfg(any(test, feature = "counters"))]
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Bytes of a target's inputs before compression, at most.
const CORPUS_BYTES_MAX: u64 = 64 << 20;
const LEN_BYTES: usize = 4;

/// The folder with all corpora.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn file(folder: &Path, target: &str) -> PathBuf {
    folder.join(format!("{target}.zst"))
}

/// Reads a target's corpus; there is none for a new target.
pub(crate) fn read(folder: &Path, target: &str) -> io::Result<Vec<Vec<u8>>> {
    match fs::read(file(folder, target)) {
        Ok(packed) => unpacked(&packed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Writes a target's corpus, and returns the size of its file.
#[cfg(feature = "counters")]
pub(crate) fn write(folder: &Path, target: &str, inputs: Vec<Vec<u8>>) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let packed = packed(inputs);
    fs::write(file(folder, target), &packed)?;
    Ok(packed.len())
}

#[cfg(any(test, feature = "counters"))]
fn packed(mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    inputs.dedup();
    let mut plain = Vec::new();
    for input in inputs {
        plain.extend_from_slice(&(input.len() as u32).to_le_bytes());
        plain.extend_from_slice(&input);
    }
    compress_to_vec(plain.as_slice(), CompressionLevel::Fastest)
}

fn unpacked(packed: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let decoder = StreamingDecoder::new(packed).map_err(io::Error::other)?;
    let mut plain = Vec::new();
    decoder.take(CORPUS_BYTES_MAX).read_to_end(&mut plain)?;
    let mut inputs = Vec::new();
    let mut rest = plain.as_slice();
    while !rest.is_empty() {
        let (input, after) = rest
            .split_first_chunk::<LEN_BYTES>()
            .and_then(|(len, rest)| rest.split_at_checked(u32::from_le_bytes(*len) as usize))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        inputs.push(input.to_vec());
        rest = after;
    }
    Ok(inputs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Bytes of all corpora in the repository, at most.
    const ALL_BYTES_MAX: u64 = 1 << 20;

    #[test]
    fn inputs_are_packed_in_one_order_and_unpacked() {
        let inputs = vec![vec![2; 300], vec![1], Vec::new(), vec![1]];
        let packed_once = packed(inputs.clone());
        let mut other_order = inputs;
        other_order.reverse();
        assert_eq!(packed(other_order), packed_once);
        let wanted = [Vec::new(), vec![1], vec![2; 300]];
        assert_eq!(unpacked(&packed_once).unwrap(), wanted);
    }

    #[test]
    fn a_corpus_that_was_cut_is_an_error() {
        let plain = [5, 0, 0, 0, 1, 2];
        let cut = compress_to_vec(&plain[..], CompressionLevel::Fastest);
        assert!(unpacked(&cut).is_err());
        assert!(unpacked(b"no zstd").is_err());
    }

    #[test]
    fn each_target_has_a_corpus_and_all_are_small() {
        let mut bytes = 0;
        let mut files: Vec<String> = fs::read_dir(folder())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                bytes += entry.metadata().unwrap().len();
                entry.file_name().into_string().unwrap()
            })
            .collect();
        files.sort();
        let mut wanted: Vec<_> = crate::targets::all()
            .iter()
            .map(|target| format!("{}.zst", target.name))
            .collect();
        wanted.sort();
        assert_eq!(files, wanted);
        assert!(bytes <= ALL_BYTES_MAX, "{bytes}");
        for target in crate::targets::all() {
            let corpus = read(&folder(), target.name).unwrap();
            assert!(!corpus.is_empty(), "{}", target.name);
        }
    }
}
