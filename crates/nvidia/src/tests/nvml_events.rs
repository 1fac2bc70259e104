//! Errors of GPUs, told by the management library of `nvml_events.c`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{GpuError, GpuErrorKind, Watcher};

const LIMIT: Duration = Duration::from_millis(20);

/// Builds a fake of the library in a folder of its own.
fn library(source: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnvidia-ml.so.1");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-w", "-o"]);
    cc.arg(&library).arg(tests.join(source));
    assert!(cc.status().unwrap().success());
    (folder, library)
}

#[test]
fn errors_and_lost_gpus_are_told() {
    let (folder, library) = library("nvml_events.c");
    let uuids = ["GPU-a", "GPU-b"].map(String::from);
    let mut watcher = Watcher::open_from(library.as_os_str(), uuids.into()).unwrap();
    assert_eq!(watcher.wait(LIMIT), Ok(None));

    let tell = |text: &str| {
        fs::write(folder.path().join("new"), text).unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("event")).unwrap();
    };
    let error = |uuid: &str, kind| {
        let uuid = uuid.into();
        Ok(Some(GpuError { uuid, kind }))
    };
    tell("GPU-b 8 79");
    assert_eq!(watcher.wait(LIMIT), error("GPU-b", GpuErrorKind::Xid(79)));
    tell("GPU-a 2 0");
    let double_bit = GpuErrorKind::Event("double-bit ECC error");
    assert_eq!(watcher.wait(LIMIT), error("GPU-a", double_bit));
    // It is not registered: a corrected error.
    tell("GPU-a 1 0");
    assert_eq!(watcher.wait(LIMIT), Ok(None));
    // Another GPU than those that are watched.
    tell("GPU-c 8 79");
    assert_eq!(watcher.wait(LIMIT), Ok(None));

    assert!(watcher.lost().is_empty());
    fs::write(folder.path().join("lost"), "GPU-x\nGPU-b\n").unwrap();
    assert_eq!(watcher.wait(LIMIT), Ok(None));
    assert_eq!(*watcher.lost(), BTreeSet::from(["GPU-b".to_owned()]));
    fs::remove_file(folder.path().join("lost")).unwrap();
    assert_eq!(watcher.wait(LIMIT), Ok(None));
    assert!(watcher.lost().is_empty());
}

#[test]
fn a_library_without_events_is_an_error() {
    let (_folder, library) = library("nvml.c");
    let failure = Watcher::open_from(library.as_os_str(), vec!["GPU-a".into()]).err();
    assert!(failure.unwrap().to_string().contains("nvmlEventSetCreate"));
}
