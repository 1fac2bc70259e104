//! Module images by their BLAKE3 hash: received once, kept across sessions.

use std::{
    collections::HashMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use outboard_api::CUresult;

use crate::device::Failure;

/// The longest image that a session may send.
pub const IMAGE_BYTES_MAX: u64 = 4 << 30;
/// Images in the middle of being received, all together.
pub const IMAGES_RECEIVING_MAX: usize = 16;
/// Below this an image is cheaper to send again than to keep on disk.
const KEEP_BYTES_MIN: usize = 64 << 10;

pub type Hash = [u8; 32];

/// This session's images, in front of a folder that all sessions share.
pub struct ImageStore {
    held: HashMap<Hash, Arc<[u8]>>,
    receiving: HashMap<Hash, Vec<u8>>,
    folder: Option<PathBuf>,
}

impl ImageStore {
    /// `folder` holds images between sessions; without one, or where it cannot be written, a session sends all of its own.
    pub fn new(folder: Option<PathBuf>) -> ImageStore {
        ImageStore {
            held: HashMap::new(),
            receiving: HashMap::new(),
            folder,
        }
    }

    pub fn hash(bytes: &[u8]) -> Result<Hash, Failure> {
        bytes.try_into().map_err(|_| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("an image's hash has 32 bytes, not {}", bytes.len()),
            )
        })
    }

    /// Whether the image need not be sent.
    pub fn offer(&mut self, hash: &Hash, len: u64) -> bool {
        if self.held.contains_key(hash) {
            return true;
        }
        let Some(image) = self.folder.as_deref().and_then(|f| read_kept(f, hash, len)) else {
            return false;
        };
        self.held.insert(*hash, image.into());
        true
    }

    /// A piece of an image. Pieces come in order.
    pub fn put(&mut self, hash: &Hash, offset: u64, len: u64, data: &[u8]) -> Result<(), Failure> {
        let wrong = |what: String| Failure::new(CUresult::CUDA_ERROR_INVALID_IMAGE, what);
        if len > IMAGE_BYTES_MAX {
            return Err(wrong(format!(
                "an image of {len} bytes; at most {IMAGE_BYTES_MAX} are taken"
            )));
        }
        if offset == 0 {
            if self.receiving.len() >= IMAGES_RECEIVING_MAX {
                return Err(wrong(format!(
                    "more than {IMAGES_RECEIVING_MAX} images at a time"
                )));
            }
            self.receiving.insert(*hash, Vec::new());
        }
        let image = self
            .receiving
            .get_mut(hash)
            .ok_or_else(|| wrong("a piece of an image without its beginning".into()))?;
        if image.len() as u64 != offset || offset + data.len() as u64 > len {
            self.receiving.remove(hash);
            return Err(wrong(format!(
                "a piece of an image out of order, at {offset} of {len}"
            )));
        }
        image.extend_from_slice(data);
        if image.len() as u64 == len {
            let image = self.receiving.remove(hash).unwrap_or_default();
            if blake3::hash(&image).as_bytes() != hash {
                return Err(wrong("an image that is not what its hash says".into()));
            }
            if let Some(folder) = self
                .folder
                .as_deref()
                .filter(|_| image.len() >= KEEP_BYTES_MIN)
            {
                if let Err(error) = keep(folder, hash, &image) {
                    tracing::warn!(folder = %folder.display(), %error, "the image cache cannot be written; images will be sent again");
                    self.folder = None;
                }
            }
            self.held.insert(*hash, image.into());
        }
        Ok(())
    }

    /// An image made here (a linker's output): the client may ask for it, or load it.
    pub fn hold(&mut self, image: Vec<u8>) -> Hash {
        let hash = *blake3::hash(&image).as_bytes();
        self.held.insert(hash, image.into());
        hash
    }

    pub fn get(&self, hash: &Hash) -> Result<Arc<[u8]>, Failure> {
        self.held.get(hash).cloned().ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_IMAGE,
                "the image was never sent",
            )
        })
    }

    /// Forgets an image that was loaded: the device keeps what it needs.
    pub fn release(&mut self, hash: &Hash) {
        self.held.remove(hash);
    }
}

fn file_name(folder: &Path, hash: &Hash) -> PathBuf {
    folder.join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
}

fn read_kept(folder: &Path, hash: &Hash, len: u64) -> Option<Vec<u8>> {
    let path = file_name(folder, hash);
    if fs::metadata(&path).ok()?.len() != len {
        return None;
    }
    let image = fs::read(&path).ok()?;
    // A cut or altered file is as good as none.
    if blake3::hash(&image).as_bytes() != hash {
        let _ = fs::remove_file(&path);
        return None;
    }
    Some(image)
}

fn keep(folder: &Path, hash: &Hash, image: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = file_name(folder, hash);
    if path.exists() {
        return Ok(());
    }
    let partial = folder.join(format!(".{}.partial", std::process::id()));
    let written = fs::File::create(&partial).and_then(|mut f| f.write_all(image));
    if let Err(error) = written.and_then(|()| fs::rename(&partial, &path)) {
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    Ok(())
}
