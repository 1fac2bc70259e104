//! Decides whether a program can load a library that is preloaded into it.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::Mode,
    process::{getgid, getuid},
};

/// Length of the part of a program that is read: it contains the ELF header, the program headers
/// and the name of its loader.
const HEAD_BYTES: u64 = 8 << 10;
/// Deepest nesting of scripts whose interpreters are scripts.
const SCRIPTS_MAX: u32 = 4;
const ELF: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const MACHINE_X86_64: u16 = 62;
/// The loader of the C library that our libraries were built for.
const LOADER: &[u8] = b"ld-linux-x86-64.so.2\0";

/// Returns whether this is a program, or a script of one, for x86-64 and glibc. A static program
/// preloads nothing.
pub(crate) fn can_load(program: &OsStr) -> bool {
    let mut program = program.to_os_string();
    for _ in 0..SCRIPTS_MAX {
        let Some(head) = find(&program).and_then(|path| head(&path)) else {
            return false;
        };
        match interpreter(&head) {
            Some(next) => program = next,
            None => return is_ours(&head),
        }
    }
    false
}

/// Returns whether the program gets another user or group by its file's mode: the loader then
/// ignores the variables by which it would find our libraries.
pub(crate) fn loses_variables(program: &OsStr) -> bool {
    let Some(about) = find(program).and_then(|path| path.metadata().ok()) else {
        return false;
    };
    let (user, group) = (Mode::SUID, Mode::SGID | Mode::XGRP);
    let mode = Mode::from_raw_mode(about.mode());
    let gets_user = mode.contains(user) && about.uid() != getuid().as_raw();
    gets_user || mode.contains(group) && about.gid() != getgid().as_raw()
}

/// Finds a program as the system does.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let file = outboard_files::open(path).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Returns the interpreter of a script.
fn interpreter(head: &[u8]) -> Option<OsString> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let first = words.next()?;
    let is_env = first.ends_with(b"/env");
    let word = match is_env {
        true => words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?,
        false => first,
    };
    Some(OsStr::from_bytes(word).into())
}

fn is_ours(head: &[u8]) -> bool {
    let machine = head.get(18..20).map(|b| u16::from_le_bytes([b[0], b[1]]));
    head.starts_with(ELF)
        && head.get(4) == Some(&CLASS_64)
        && machine == Some(MACHINE_X86_64)
        && head.windows(LOADER.len()).any(|window| window == LOADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_lead_to_what_runs_them() {
        let of = |text: &str| interpreter(text.as_bytes()).map(|name| name.into_string().unwrap());
        assert_eq!(
            of("#!/usr/bin/python3 -u\n").as_deref(),
            Some("/usr/bin/python3")
        );
        assert_eq!(
            of("#! /usr/bin/env -S A=1 python3\nx").as_deref(),
            Some("python3")
        );
        assert_eq!(of("#!\n"), None);
        assert_eq!(of("plain text"), None);
    }

    #[test]
    fn this_test_can_and_other_kinds_of_program_cannot() {
        let here = env::current_exe().unwrap();
        assert!(can_load(here.as_os_str()));
        assert!(!can_load(OsStr::new("/nonexistent")));
        let mut head = head(&here).unwrap();
        assert!(is_ours(&head));
        head[4] = 1;
        assert!(!is_ours(&head));
    }
}
