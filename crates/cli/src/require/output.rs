//! Output files that are either whole or absent.

use std::{
    fs::{File, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use outboard_files::Output;
use tempfile::NamedTempFile;

/// Names of standard output. Where that is a file, text written to it by another descriptor would
/// lie over what is written to this one.
const STANDARD: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Bytes that are written to see whether there is room for any.
const CHECKED_BYTES: usize = 4096;

/// Texts to write, and their files. `-` is standard output, in place of the text for people.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    files: Vec<(PathBuf, String)>,
    standard: Vec<String>,
}

/// Creates a file without a name of its own in the folder of `path`, which is to replace it. A
/// recording is not replaced: nothing brings it back.
fn beside(path: &Path) -> anyhow::Result<NamedTempFile> {
    let is_recording = path.exists() && outboard_trace::is_recording(path)?;
    anyhow::ensure!(!is_recording, "this is a recording; name another file");
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // The process's mask takes from these what it takes from every new file.
    let made = tempfile::Builder::new()
        .prefix(".outboard-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder);
    made.map_err(nameless)
}

/// Writes a file that is whole or, on failure, as it was before.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> anyhow::Result<()> {
    let context = || format!("writing {}", path.display());
    let Output::Replaces(place) = outboard_files::output(path).with_context(context)? else {
        let file = outboard_files::open_stream(path);
        return file
            .and_then(|mut file| write(&mut file))
            .with_context(context);
    };
    let mut file = beside(&place).with_context(context)?;
    write(file.as_file_mut())
        .map_err(nameless)
        .with_context(context)?;
    file.persist(place).map(drop).with_context(context)
}

/// An error of a temporary file without that file's name, which tells the user nothing.
pub(crate) fn nameless(error: io::Error) -> anyhow::Error {
    let text = error.to_string();
    anyhow::anyhow!(match text.split_once(" at path ") {
        Some((why, _)) => why.to_owned(),
        None => text,
    })
}

/// Fails if a file cannot be written there, or a little does not fit; changes nothing. For what
/// takes long to measure.
pub(crate) fn check_writable(path: &Path) -> anyhow::Result<()> {
    let context = || format!("writing {}", path.display());
    if path == Path::new("-") {
        return Ok(());
    }
    match outboard_files::output(path).with_context(context)? {
        Output::Stream => {
            let opened = outboard_files::open_stream(path);
            // A full device says so even if nothing is written.
            opened
                .and_then(|file| Ok(rustix::io::write(file, &[])?))
                .map(drop)
                .with_context(context)
        }
        Output::Replaces(place) => {
            let mut file = beside(&place).with_context(context)?;
            file.write_all(&[0; CHECKED_BYTES])
                .map_err(nameless)
                .with_context(context)
        }
    }
}

impl Outputs {
    pub(crate) fn add(&mut self, path: &Path, text: String) {
        match STANDARD.iter().any(|name| path == Path::new(name)) {
            true => self.standard.push(text),
            false => self.files.push((path.into(), text)),
        }
    }

    /// Writes all files under temporary names first, and only then renames them.
    pub(crate) fn finish(self, text: &str) -> anyhow::Result<()> {
        let mut written = Vec::new();
        for (path, text) in &self.files {
            let context = || format!("writing {}", path.display());
            let Output::Replaces(place) = outboard_files::output(path).with_context(context)?
            else {
                let file = outboard_files::open_stream(path);
                let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
                written.with_context(context)?;
                continue;
            };
            let mut file = beside(&place).with_context(context)?;
            file.write_all(text.as_bytes())
                .map_err(nameless)
                .with_context(context)?;
            written.push((file, place, path));
        }
        for (file, place, path) in written {
            file.persist(place)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let standard = match self.standard.is_empty() {
            true => text.into(),
            false => self.standard.concat(),
        };
        crate::said::print(standard.as_bytes()).map(|_| ())
    }
}
