//! The libraries that a program loads in place of NVIDIA's, and folders that contain them under
//! NVIDIA's names.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail};

/// A library of Outboard.
pub(crate) struct Library {
    /// Names under which programs load it: with the version, and without, as for linking.
    pub(crate) names: [&'static str; 2],
    /// Its file name in cargo's output.
    built_name: &'static str,
    /// Its folder when installed, relative to the folder of libraries.
    installed_in: &'static str,
}

pub(crate) const CUDA: Library = Library {
    names: ["libcuda.so.1", "libcuda.so"],
    built_name: "liboutboard_client.so",
    installed_in: "outboard",
};
pub(crate) const NVML: Library = Library {
    names: ["libnvidia-ml.so.1", "libnvidia-ml.so"],
    built_name: "liboutboard_nvml.so",
    installed_in: "outboard",
};
/// The library that PyTorch's profiler uses. It is preloaded by its path, since PyTorch's RPATH
/// finds PyTorch's own first.
pub(crate) const CUPTI: Library = Library {
    names: ["libcupti.so.13", "libcupti.so"],
    built_name: "liboutboard_cupti.so",
    installed_in: "outboard",
};
/// Passes calls to this machine's driver and records them. It is installed in a folder of its own,
/// because it has the driver's name.
const RECORDER: Library = Library {
    names: CUDA.names,
    built_name: "liboutboard_recorder.so",
    installed_in: "outboard/recorder",
};
/// The library that the stand-ins for rdma-core's load.
const ADAPTER: Library = Library {
    names: [outboard_nic::SERVING; 2],
    built_name: outboard_nic::SERVING,
    installed_in: "outboard",
};
/// Symbols that Outboard's own libraries export, and no driver.
const OUR_MARKS: [&[u8]; 2] = [b"outboard_client\0", b"outboard_mark\0"];

impl Library {
    /// Finds the library beside the executable, as installed or as built.
    pub(crate) fn find(&self) -> anyhow::Result<PathBuf> {
        let executable = env::current_exe().context("asking where this executable is")?;
        let folder = executable.parent().unwrap_or(Path::new("/"));
        let places = [
            folder
                .join("lib")
                .join(self.installed_in)
                .join(self.names[0]),
            folder
                .join("../lib")
                .join(self.installed_in)
                .join(self.names[0]),
            folder.join(self.built_name),
            folder.join("deps").join(self.built_name),
        ];
        for place in &places {
            if let Ok(found) = place.canonicalize() {
                return Ok(found);
            }
        }
        let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
        bail!(
            "Outboard's {} was not found; looked for {}",
            self.names[0],
            places.join(", ")
        )
    }
}

/// Returns a folder with our libraries under all of NVIDIA's names. It is the same folder for every
/// run of this installation.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let cuda = CUDA.find()?;
    let mut links: Vec<(&str, PathBuf)> = CUDA.names.iter().map(|n| (*n, cuda.clone())).collect();
    match NVML.find() {
        Ok(nvml) => links.extend(NVML.names.iter().map(|n| (*n, nvml.clone()))),
        Err(error) => {
            eprintln!("outboard: programs will see no NVML (as nvidia-smi needs it): {error}")
        }
    }
    match CUPTI.find() {
        Ok(cupti) => links.extend(CUPTI.names.iter().map(|n| (*n, cupti.clone()))),
        Err(error) => eprintln!("outboard: nothing can be profiled: {error}"),
    }
    folder_of(&cuda, links)
}

/// Returns a folder with the recorder under the driver's name; the management library is the
/// machine's own.
pub(crate) fn recorder_folder() -> anyhow::Result<PathBuf> {
    let recorder = RECORDER.find()?;
    let links = RECORDER.names.map(|name| (name, recorder.clone()));
    folder_of(&recorder, links.into())
}

/// Returns a folder with the stand-ins for rdma-core's libraries, which this executable contains,
/// and the library that they load. It is the same folder for every run of this installation.
pub(crate) fn adapter_folder() -> anyhow::Result<PathBuf> {
    let adapter = ADAPTER.find()?;
    let mut hasher = DefaultHasher::new();
    (&adapter, outboard_nic::LIBRARIES, outboard_nic::PRELOADED).hash(&mut hasher);
    (outboard_nic::FILES, outboard_nic::FILES_LINK).hash(&mut hasher);
    let folder = private_folder()?.join(format!("adapter-{:016x}", hasher.finish()));
    make_private(&folder)?;
    link(&folder.join(outboard_nic::SERVING), &adapter)
        .with_context(|| format!("linking {}", adapter.display()))?;
    put(
        &folder.join(outboard_nic::PRELOADED.0),
        outboard_nic::PRELOADED.1,
    )?;
    adapter_files(&folder)?;
    for (name, bytes) in outboard_nic::LIBRARIES {
        let path = folder.join(name);
        put(&path, bytes)?;
        // NCCL asks for the name that compilers use, first, and would get rdma-core's.
        if let Some(unversioned) = name.strip_suffix(".1") {
            link(&folder.join(unversioned), &path)
                .with_context(|| format!("linking {}", path.display()))?;
        }
    }
    Ok(folder)
}

/// Writes the files of the adapter that programs read.
fn adapter_files(folder: &Path) -> anyhow::Result<()> {
    let make = |path: &Path| {
        fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))
    };
    for (name, text) in outboard_nic::FILES {
        let path = folder.join(name);
        make(path.parent().unwrap_or(folder))?;
        put(&path, text.as_bytes())?;
    }
    let (name, target) = outboard_nic::FILES_LINK;
    let path = folder.join(name);
    let beside = path.parent().unwrap_or(folder);
    make(&beside.join(target))?;
    link(&path, Path::new(target)).with_context(|| format!("linking {}", path.display()))
}

/// Writes a file in one step, since a program may be loading it; leaves one that is right.
fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let written = fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // Of a full disk what was written of it is left.
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

/// Returns a link to this executable under the name of NVIDIA's assembler, which [`crate::ptxas`]
/// then replaces.
pub(crate) fn ptxas() -> anyhow::Result<PathBuf> {
    let executable = env::current_exe().context("asking where this executable is")?;
    let mut hasher = DefaultHasher::new();
    executable.hash(&mut hasher);
    let folder = private_folder()?.join(format!("ptxas-{:016x}", hasher.finish()));
    make_private(&folder)?;
    let path = folder.join(crate::ptxas::NAME);
    link(&path, &executable).with_context(|| format!("linking {}", path.display()))?;
    Ok(path)
}

/// Returns this machine's own driver: `OUTBOARD_DRIVER`, or the one that the loader finds.
pub(crate) fn driver(variable: &str) -> anyhow::Result<PathBuf> {
    if let Some(given) = env::var_os(variable).filter(|name| !name.is_empty()) {
        let path = PathBuf::from(given);
        loads(&path).map_err(|why| anyhow::anyhow!("{variable}={}: {why}", path.display()))?;
        return path
            .canonicalize()
            .with_context(|| format!("{variable}={}", path.display()));
    }
    // SAFETY: a driver's initialisers do nothing before cuInit.
    let library = unsafe { libloading::Library::new(CUDA.names[0]) }
        .map_err(once)
        .with_context(|| {
            format!(
                "this machine has no driver to be recorded; {variable} may name its {}",
                CUDA.names[0]
            )
        })?;
    // SAFETY: the symbol is looked up, not used.
    let is_ours = |mark: &&[u8]| unsafe { library.get::<*const ()>(mark) }.is_ok();
    if OUR_MARKS.iter().any(is_ours) {
        bail!(
            "the loader finds Outboard's own {} in place of a driver; take it out of LD_LIBRARY_PATH, or let {variable} name the driver's",
            CUDA.names[0]
        );
    }
    let maps = fs::read_to_string("/proc/self/maps").context("asking where the driver lies")?;
    std::mem::forget(library);
    let path = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| {
            Path::new(path)
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"libcuda.so"))
        });
    path.map(PathBuf::from)
        .context("the driver is loaded, and lies nowhere")
}

/// Returns the library's folder if it has all the names, or a folder with links of these names.
fn folder_of(library: &Path, links: Vec<(&str, PathBuf)>) -> anyhow::Result<PathBuf> {
    if let Some(installed) = library
        .parent()
        .filter(|f| links.iter().all(|(n, _)| f.join(n).exists()))
    {
        return Ok(installed.into());
    }
    let mut hasher = DefaultHasher::new();
    links.hash(&mut hasher);
    let folder = private_folder()?.join(format!("libraries-{:016x}", hasher.finish()));
    make_private(&folder)?;
    for (name, target) in links {
        link(&folder.join(name), &target)
            .with_context(|| format!("linking {} into {}", target.display(), folder.display()))?;
    }
    Ok(folder)
}

/// Returns `XDG_RUNTIME_DIR`, which counts only if it is absolute, by the XDG specification: a
/// program and its server run in different folders.
pub(crate) fn runtime_folder() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    folder.is_absolute().then_some(folder)
}

/// Returns a folder that only the user can write: another writer could make our programs load
/// anything, or serve them.
pub(crate) fn private_folder() -> anyhow::Result<PathBuf> {
    let folder = match runtime_folder() {
        Some(runtime) if runtime.is_dir() => runtime.join("outboard"),
        _ => env::temp_dir().join(format!("outboard-{}", rustix::process::getuid().as_raw())),
    };
    make_private(&folder)?;
    Ok(folder)
}

fn make_private(folder: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| {
                format!(
                    "no place for sockets and links to the libraries, XDG_RUNTIME_DIR or TMPDIR may name one: {}",
                    folder.display()
                )
            });
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(folder)?;
    let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::getuid().as_raw();
    if !is_ours || metadata.mode() & 0o022 != 0 {
        bail!(
            "{} is not a folder that only you can write to; remove it, or set XDG_RUNTIME_DIR",
            folder.display()
        );
    }
    Ok(())
}

/// Replaces a link in one step, since another `run` may do the same.
fn link(path: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|present| present == target) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    symlink(target, &fresh)?;
    fs::rename(&fresh, path)
}

/// Loads a library in a process of its own, which a broken library may crash.
pub(crate) fn loads(path: &Path) -> Result<(), String> {
    let output = Command::new("/proc/self/exe")
        .arg("try-library")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{} ({})", said.trim(), output.status))
        }
    }
}

/// The loader's text, which names the library; the error has it a second time as its source.
pub(crate) fn once(error: libloading::Error) -> anyhow::Error {
    anyhow::anyhow!(error.to_string())
}

pub(crate) fn try_library(path: &Path) -> anyhow::Result<ExitCode> {
    // SAFETY: this process was started to run the library's initialisers.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(once)
        .context("loading")?;
    // Its threads and exit handlers need it loaded.
    std::mem::forget(library);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn nothing_is_left_of_a_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library.so");
        // No file replaces a folder.
        fs::create_dir(&path).unwrap();
        assert!(put(&path, b"library").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_dir(&path).unwrap();
        put(&path, b"library").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"library");
    }
}
