//! Output files that are either whole or absent.

use std::{
    fs::{OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// Texts to write, and their files. `-` is standard output, in place of the text for people.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    files: Vec<(PathBuf, String)>,
    standard: Vec<String>,
}

impl Outputs {
    pub(crate) fn add(&mut self, path: &Path, text: String) {
        match path == Path::new("-") {
            true => self.standard.push(text),
            false => self.files.push((path.into(), text)),
        }
    }

    /// Writes all files under temporary names first, and only then renames them.
    pub(crate) fn finish(self, text: &str) -> anyhow::Result<()> {
        let mut written = Vec::new();
        for (path, text) in &self.files {
            let context = || format!("writing {}", path.display());
            // A pipe or a device cannot be replaced by renaming.
            if path.exists() && !path.is_file() {
                let file = OpenOptions::new().write(true).open(path);
                let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
                written.with_context(context)?;
                continue;
            }
            let folder = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            // The process's mask applies to these permissions as to every new file's.
            let mut file = tempfile::Builder::new()
                .prefix(".outboard-")
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder)
                .with_context(context)?;
            file.write_all(text.as_bytes()).with_context(context)?;
            written.push((file, path));
        }
        for (file, path) in written {
            file.persist(path)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let standard = match self.standard.is_empty() {
            true => text.into(),
            false => self.standard.concat(),
        };
        crate::print(standard.as_bytes()).map(|_| ())
    }
}
