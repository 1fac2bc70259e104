//! Module images by BLAKE3 hash: each is received once and kept across sessions.

use std::{
    collections::HashMap,
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use outboard_api::CUresult;
use outboard_wire::limits::IMAGE_KEPT_BYTES_MIN;

use crate::Failure;

/// The longest image that a session may send.
const IMAGE_BYTES_MAX: u64 = 4 << 30;
/// Images being received at one time.
const IMAGES_RECEIVING_MAX: usize = 16;
/// Bytes of images that one session holds in memory, whole and partial.
const IMAGES_BYTES_MAX: u64 = 8 << 30;
/// Bytes above which images that the folder also has are dropped from memory, the least recently
/// used first.
const IMAGES_IDLE_BYTES_MAX: u64 = 1 << 30;
/// Bytes that the folder keeps, if nothing else is said; above this the least recently used images
/// are removed.
const CACHE_BYTES_MAX: u64 = 16 << 30;
/// Bytes of a tenant's hash that the names of its files begin with.
const OWNER_BYTES: usize = 8;
/// Length of the BLAKE3 hash that ends each note.
const NOTE_CHECK_BYTES: usize = 32;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// One session's images, held in memory and backed by a folder that all sessions share.
pub struct ImageStore {
    held: HashMap<Hash, Held>,
    receiving: HashMap<Hash, Vec<u8>>,
    folder: Option<Folder>,
    /// Counts uses, to find the least recently used image.
    clock: u64,
    idle_bytes_max: u64,
}

/// An image that the session may load.
struct Held {
    len: u64,
    /// `None` if only the folder still has it.
    image: Option<Arc<Vec<u8>>>,
    used: u64,
}

/// Bytes that a folder of images may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// Files that one tenant's sessions have written; None is without a bound of its own.
    pub tenant_bytes: Option<u64>,
    /// All files together.
    pub all_bytes: u64,
}

impl Default for DiskLimits {
    fn default() -> DiskLimits {
        DiskLimits {
            tenant_bytes: None,
            all_bytes: CACHE_BYTES_MAX,
        }
    }
}

/// The folder that keeps images between sessions. The names of a tenant's files depend on the
/// tenant: whoever knows the hash of another's image finds nothing.
#[derive(Clone)]
struct Folder {
    path: PathBuf,
    /// Key of the hash that gives a file its name.
    key: [u8; blake3::KEY_LEN],
    /// The tenant's mark, with which its files' names begin: by it they are counted.
    owner: String,
    limits: DiskLimits,
}

impl Folder {
    fn new(path: PathBuf, tenant: &str, limits: DiskLimits) -> Folder {
        let key = blake3::derive_key("outboard images of a tenant", tenant.as_bytes());
        let owner = blake3::derive_key("outboard owner of images", tenant.as_bytes());
        let owner = owner[..OWNER_BYTES]
            .iter()
            .map(|byte| format!("{byte:02x}"));
        Folder {
            path,
            key,
            owner: owner.collect::<String>() + "-",
            limits,
        }
    }

    fn file(&self, hash: &Hash) -> PathBuf {
        let name = blake3::keyed_hash(&self.key, hash);
        self.path.join(format!("{}{}", self.owner, name.to_hex()))
    }

    fn note(&self, hash: &Hash, label: &str) -> PathBuf {
        self.file(hash).with_extension(label)
    }
}

impl ImageStore {
    /// Makes an empty store. `folder` holds images between sessions; without a writable one, each
    /// session receives all its images. A session finds those of its tenant, to whom the bytes that
    /// it writes are counted.
    pub fn new(folder: Option<PathBuf>, tenant: &str, limits: DiskLimits) -> ImageStore {
        let folder = folder.map(|path| Folder::new(path, tenant, limits));
        ImageStore {
            held: HashMap::new(),
            receiving: HashMap::new(),
            folder,
            clock: 0,
            idle_bytes_max: IMAGES_IDLE_BYTES_MAX,
        }
    }

    /// Reads a hash out of a message.
    pub fn hash(bytes: &[u8]) -> Result<Hash, Failure> {
        bytes.try_into().map_err(|_| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("an image's hash has 32 bytes, not {}", bytes.len()),
            )
        })
    }

    /// Whether the image is here and need not be sent.
    pub fn offer(&mut self, hash: &Hash, len: u64) -> bool {
        if self.held.contains_key(hash) {
            return true;
        }
        if self.bytes().saturating_add(len) > IMAGES_BYTES_MAX {
            return false;
        }
        let Some(image) = self.folder.as_ref().and_then(|f| read_kept(f, hash, len)) else {
            return false;
        };
        self.insert(*hash, image);
        true
    }

    /// Takes one piece of an image. Pieces come in order.
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
        let occupied = self.bytes();
        if occupied + data.len() as u64 > IMAGES_BYTES_MAX {
            self.receiving.remove(hash);
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!(
                    "images of {occupied} bytes; a session may have {IMAGES_BYTES_MAX} (IMAGES_BYTES_MAX)"
                ),
            ));
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
            self.keep(hash, &image);
            self.insert(*hash, image);
        }
        Ok(())
    }

    /// Adds an image made on the server, such as a linker's output; the client may fetch it or load
    /// it.
    pub fn hold(&mut self, image: Vec<u8>) -> Hash {
        let hash = *blake3::hash(&image).as_bytes();
        self.insert(hash, image);
        hash
    }

    /// Returns the image that a client wants to load, or `None` if the client must send it first.
    pub fn find(&mut self, hash: &Hash, len: u64) -> Option<Arc<Vec<u8>>> {
        match self.offer(hash, len) {
            true => self.get(hash).ok(),
            false => None,
        }
    }

    /// Returns an image that was offered or received in this session.
    pub fn get(&self, hash: &Hash) -> Result<Arc<Vec<u8>>, Failure> {
        let missing = |what| Failure::new(CUresult::CUDA_ERROR_INVALID_IMAGE, what);
        let held = self
            .held
            .get(hash)
            .ok_or_else(|| missing("the image was never sent"))?;
        if let Some(image) = &held.image {
            return Ok(Arc::clone(image));
        }
        let folder = self.folder.as_ref();
        folder
            .and_then(|folder| read_kept(folder, hash, held.len))
            .map(Arc::new)
            .ok_or_else(|| missing("the image has vanished from the server's cache"))
    }

    /// Returns the note that an earlier session derived from an image and kept under this label.
    pub fn note(&self, hash: &Hash, label: &str) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.note(hash, label);
        let mut note = fs::read(&path).ok()?;
        let whole = note
            .split_last_chunk::<NOTE_CHECK_BYTES>()
            .is_some_and(|(text, check)| note_check(text) == *check);
        if !whole {
            let _ = fs::remove_file(&path);
            return None;
        }
        note.truncate(note.len() - NOTE_CHECK_BYTES);
        touch(&path);
        Some(note)
    }

    /// Keeps a note beside an image, if the folder holds the image. The label becomes part of a
    /// file name.
    pub fn keep_note(&mut self, hash: &Hash, label: &str, note: &[u8]) {
        let Some(folder) = self.folder.as_ref() else {
            return;
        };
        if folder.file(hash).exists() {
            let file = folder.note(hash, label);
            // Without the note the next session derives it anew.
            if let Err(error) = folder.write(&file, &[note, &note_check(note)]) {
                tracing::debug!(file = %file.display(), %error, "a note that cannot be kept");
            }
        }
    }

    /// Drops an image that was loaded; the device keeps its own copy.
    pub fn release(&mut self, hash: &Hash) {
        self.held.remove(hash);
    }

    fn insert(&mut self, hash: Hash, image: Vec<u8>) {
        self.clock += 1;
        let held = Held {
            len: image.len() as u64,
            image: Some(Arc::new(image)),
            used: self.clock,
        };
        self.held.insert(hash, held);
        self.drop_idle(&hash);
    }

    fn drop_idle(&mut self, newest: &Hash) {
        let Some(folder) = self.folder.clone() else {
            return;
        };
        // With a share of its own, what a tenant has in the folder may soon make room for more.
        if folder.limits.tenant_bytes.is_some() {
            return;
        }
        let mut bytes = self.bytes();
        if bytes <= self.idle_bytes_max {
            return;
        }
        let mut in_memory: Vec<_> = self
            .held
            .iter_mut()
            .filter(|(hash, held)| held.image.is_some() && *hash != newest)
            .collect();
        in_memory.sort_by_key(|(_, held)| held.used);
        for (hash, held) in in_memory {
            if bytes <= self.idle_bytes_max {
                return;
            }
            if folder.file(hash).exists() {
                held.image = None;
                bytes -= held.len;
            }
        }
    }

    /// Bytes of whole and partial images in memory.
    fn bytes(&self) -> u64 {
        let held = self.held.values().filter_map(|held| held.image.as_deref());
        let held: usize = held.map(Vec::len).sum();
        let receiving: usize = self.receiving.values().map(Vec::len).sum();
        (held + receiving) as u64
    }

    fn keep(&mut self, hash: &Hash, image: &[u8]) {
        let Some(folder) = self.folder.as_ref() else {
            return;
        };
        if image.len() < IMAGE_KEPT_BYTES_MIN {
            return;
        }
        if let Err(error) = keep(folder, hash, image) {
            tracing::warn!(folder = %folder.path.display(), %error, "the image cache cannot be written; images will be sent again");
            self.folder = None;
        }
    }
}

/// Checksum of a note: a truncated or altered note counts as none.
fn note_check(note: &[u8]) -> [u8; NOTE_CHECK_BYTES] {
    *blake3::hash(note).as_bytes()
}

fn read_kept(folder: &Folder, hash: &Hash, len: u64) -> Option<Vec<u8>> {
    let path = folder.file(hash);
    if fs::metadata(&path).ok()?.len() != len {
        return None;
    }
    let image = fs::read(&path).ok()?;
    // A truncated or altered file counts as none.
    if blake3::hash(&image).as_bytes() != hash {
        let _ = fs::remove_file(&path);
        return None;
    }
    touch(&path);
    Some(image)
}

/// Sets the file's modification time, which records its last use. Failing to is harmless: a
/// read-only cache still serves reads.
fn touch(path: &Path) {
    let file = fs::File::options().write(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

fn keep(folder: &Folder, hash: &Hash, image: &[u8]) -> std::io::Result<()> {
    // Images are private: they tell others what programs run on the GPU.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder.path)?;
    let path = folder.file(hash);
    if path.exists() {
        return Ok(());
    }
    folder.write(&path, &[image])
}

impl Folder {
    /// Writes a file of the tenant, within its limit and that of all: older files make room, its
    /// own for its own limit. What is larger than a limit is not written.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let tenant_bytes = self.limits.tenant_bytes.unwrap_or(u64::MAX);
        if bytes > tenant_bytes.min(self.limits.all_bytes) {
            tracing::debug!(bytes, "larger than the share of disk, and not kept");
            return Ok(());
        }
        if self.limits.tenant_bytes.is_some() {
            trim(&self.path, &self.owner, tenant_bytes - bytes)?;
        }
        write_whole(&self.path, path, parts)?;
        if self.limits.tenant_bytes.is_some() {
            // Another session of the tenant may have written at the same moment.
            trim(&self.path, &self.owner, tenant_bytes)?;
        }
        trim(&self.path, "", self.limits.all_bytes)
    }
}

/// Creates a file that was not there. Follows no link; what an ended worker of this number has left
/// is removed.
fn new_file(path: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::File::options();
    let options = options.write(true).create_new(true).mode(0o600);
    options.open(path).or_else(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        _ => Err(error),
    })
}

/// Writes a file atomically: under its name it exists in whole or not at all.
fn write_whole(folder: &Path, path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let partial = folder.join(format!(".{}.partial", std::process::id()));
    let written = new_file(&partial)
        .and_then(|mut file| parts.iter().try_for_each(|part| file.write_all(part)));
    written
        .and_then(|()| fs::rename(&partial, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&partial);
        })
}

/// Removes the least recently used of the files whose names begin so, until the rest of them is
/// within the limit.
fn trim(folder: &Path, begins: &str, bytes_max: u64) -> std::io::Result<()> {
    let mut images = Vec::new();
    for entry in fs::read_dir(folder)? {
        // Another session may remove images at the same time.
        let entry = entry?;
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(begins.as_bytes())
        {
            continue;
        }
        if let Ok(metadata) = entry.metadata() {
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            images.push((used, metadata.len(), entry.path()));
        }
    }
    images.sort();
    let mut bytes: u64 = images.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in images {
        if bytes <= bytes_max {
            break;
        }
        if fs::remove_file(path).is_ok() {
            bytes -= len;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_of(folder: Option<PathBuf>, tenant: &str) -> ImageStore {
        ImageStore::new(folder, tenant, DiskLimits::default())
    }

    fn image(byte: u8) -> (Hash, Vec<u8>) {
        let image = vec![byte; IMAGE_KEPT_BYTES_MIN];
        (*blake3::hash(&image).as_bytes(), image)
    }

    fn put(store: &mut ImageStore, hash: &Hash, image: &[u8]) -> Result<(), Failure> {
        store.put(hash, 0, image.len() as u64, image)
    }

    #[test]
    fn kept_images_need_not_be_sent_again_and_altered_ones_must() {
        let dir = tempfile::TempDir::new().unwrap();
        let folder = dir.path().join("images");
        let ((hash, image), len) = (image(1), IMAGE_KEPT_BYTES_MIN as u64);
        let mut first = store_of(Some(folder.clone()), "a");
        assert!(!first.offer(&hash, len));
        put(&mut first, &hash, &image).unwrap();
        let mut second = store_of(Some(folder.clone()), "a");
        assert!(!second.offer(&hash, len + 1));
        assert!(second.offer(&hash, len));
        assert_eq!(second.get(&hash).unwrap()[..], image);
        fs::write(
            Folder::new(folder.clone(), "a", DiskLimits::default()).file(&hash),
            vec![2; image.len()],
        )
        .unwrap();
        assert!(!store_of(Some(folder), "a").offer(&hash, len));
    }

    #[test]
    fn a_tenant_finds_nothing_of_another() {
        let dir = tempfile::TempDir::new().unwrap();
        let folder = || Some(dir.path().into());
        let ((hash, image), len) = (image(1), IMAGE_KEPT_BYTES_MIN as u64);
        put(&mut store_of(folder(), "alice"), &hash, &image).unwrap();
        assert!(!store_of(folder(), "bob").offer(&hash, len));
        assert!(store_of(folder(), "alice").offer(&hash, len));
    }

    #[test]
    fn a_link_in_the_place_of_an_unfinished_file_is_not_followed() {
        let dir = tempfile::TempDir::new().unwrap();
        let (cache, target) = (dir.path().join("cache"), dir.path().join("target"));
        fs::create_dir(&cache).unwrap();
        fs::write(&target, "kept").unwrap();
        let partial = cache.join(format!(".{}.partial", std::process::id()));
        std::os::unix::fs::symlink(&target, &partial).unwrap();
        let ((hash, image), len) = (image(1), IMAGE_KEPT_BYTES_MIN as u64);
        put(&mut store_of(Some(cache.clone()), "a"), &hash, &image).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        assert!(store_of(Some(cache), "a").offer(&hash, len));
    }

    #[test]
    fn idle_images_leave_memory_and_can_still_be_loaded() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut store = store_of(Some(dir.path().into()), "a");
        store.idle_bytes_max = 2 * IMAGE_KEPT_BYTES_MIN as u64;
        let images: Vec<_> = (0..5).map(image).collect();
        for (hash, image) in &images {
            put(&mut store, hash, image).unwrap();
        }
        assert_eq!(store.bytes(), store.idle_bytes_max);
        for (hash, image) in &images {
            assert_eq!(store.get(hash).unwrap()[..], image[..]);
        }
    }

    #[test]
    fn pieces_out_of_order_and_wrong_hashes_are_refused() {
        let mut store = store_of(None, "a");
        let (hash, image) = image(1);
        assert!(store.put(&hash, 1, 10, &[0]).is_err());
        store.put(&hash, 0, 10, &[0; 4]).unwrap();
        assert!(store.put(&hash, 5, 10, &[0]).is_err());
        assert!(put(&mut store, &[7; 32], &image).is_err());
        assert!(store.get(&hash).is_err());
        assert!(store.put(&hash, 0, IMAGE_BYTES_MAX + 1, &[0]).is_err());
    }

    #[test]
    fn notes_lie_beside_kept_images_and_altered_ones_are_none() {
        let dir = tempfile::TempDir::new().unwrap();
        let (hash, image) = image(1);
        let mut first = store_of(Some(dir.path().into()), "a");
        first.keep_note(&hash, "card", b"too early");
        assert_eq!(first.note(&hash, "card"), None);
        put(&mut first, &hash, &image).unwrap();
        first.keep_note(&hash, "card", b"two kernels");
        let second = store_of(Some(dir.path().into()), "a");
        assert_eq!(second.note(&hash, "card").unwrap(), b"two kernels");
        assert_eq!(second.note(&hash, "other"), None);
        assert_eq!(store_of(None, "a").note(&hash, "card"), None);
        let file = Folder::new(dir.path().into(), "a", DiskLimits::default()).note(&hash, "card");
        let mut altered = fs::read(&file).unwrap();
        altered[0] ^= 1;
        for bytes in [&altered[..], &altered[..5]] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(second.note(&hash, "card"), None);
            assert!(!file.exists());
        }
    }

    #[test]
    fn a_tenants_bytes_are_bounded_and_others_lose_nothing() {
        let len = IMAGE_KEPT_BYTES_MIN as u64;
        let dir = tempfile::TempDir::new().unwrap();
        let store = |tenant, images| {
            let limits = DiskLimits {
                tenant_bytes: Some(images * len + len / 2),
                ..DiskLimits::default()
            };
            ImageStore::new(Some(dir.path().into()), tenant, limits)
        };
        let on_disk = || -> u64 {
            let all = fs::read_dir(dir.path()).unwrap();
            all.map(|entry| entry.unwrap().metadata().unwrap().len())
                .sum()
        };
        let images: Vec<_> = (0..5).map(image).collect();
        let [first, second, third, fourth, _] = &images[..] else {
            panic!()
        };
        let mut other = store("other", 1);
        put(&mut other, &first.0, &first.1).unwrap();
        let mut mine = store("mine", 2);
        for (hash, image) in [second, third, fourth] {
            put(&mut mine, hash, image).unwrap();
            assert!(on_disk() <= 3 * len, "the other's one, two of mine");
        }
        // A session that has sent them can load them all.
        assert!(
            [second, third, fourth]
                .iter()
                .all(|(hash, _)| mine.get(hash).is_ok())
        );
        let mut later = store("mine", 2);
        let kept = [second, third, fourth].map(|(hash, _)| later.offer(hash, len));
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 2);
        assert!(kept[2], "the last one");
        assert!(store("other", 1).offer(&first.0, len));
        // Larger than the share: used, and not kept.
        let mut small = store("small", 0);
        put(&mut small, &first.0, &first.1).unwrap();
        assert!(small.get(&first.0).is_ok() && !store("small", 0).offer(&first.0, len));
        // The server's bound is over all.
        let limits = DiskLimits {
            tenant_bytes: None,
            all_bytes: 2 * len,
        };
        let mut last = ImageStore::new(Some(dir.path().into()), "last", limits);
        put(&mut last, &images[4].0, &images[4].1).unwrap();
        assert!(on_disk() <= 2 * len);
    }

    #[test]
    fn the_folder_is_trimmed_by_last_use() {
        let dir = tempfile::TempDir::new().unwrap();
        for (name, age_s) in [("old", 30), ("newer", 20), ("new", 10)] {
            let path = dir.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let used = SystemTime::now() - std::time::Duration::from_secs(age_s);
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(used)
                .unwrap();
        }
        touch(&dir.path().join("old"));
        trim(dir.path(), "", 20).unwrap();
        let left = |name| dir.path().join(name).exists();
        assert!(left("old") && !left("newer") && left("new"));
    }
}
