//! The client packs a kernel's arguments by the layout that `outboard-image` reads in its PTX; the
//! software device unpacks them by the layout that `outboard-ptx` reads. They must be the same.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use outboard_ptx::{Memory, Module};

/// Nothing else of this process is mapped here.
const WINDOW_BASE: u64 = 0x1000_0000_0000;
const WINDOW_BYTES: u64 = 1 << 30;
const VARIABLES_BYTES: u64 = 64 << 20;
/// Fewer would mean that the test lost its files.
const FILES_MIN: usize = 15;

/// The software device has no clusters, and refuses this file, so no program gets to compare.
const REFUSED: &str = "compute_90.ptx";

/// Sizes and alignments that compilers seldom write.
const ODD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry none() { ret; }
.visible .entry widths(.param .u8 a, .param .u64 b, .param .b16 c, .param .f32 d, .param .s8 e)
{ ret; }
.visible .entry arrays(.param .align 1 .b8 a[3], .param .align 16 .b8 b[20], .param .b32 c[3],
    .param .align 2 .b8 d[1], .param .f64 e)
{ ret; }
.visible .entry pointers(.param .u64 .ptr .global .align 16 a, .param .b8 b,
    .param .u64 .ptr .shared .align 1 c)
{ ret; }
.visible .entry large_alignment(.param .b8 a, .param .align 128 .b8 b[256], .param .u16 c)
{ ret; }
";

/// Offset and size of each parameter, by kernel.
type Layouts = BTreeMap<String, Vec<(u32, u32)>>;

fn read_by_client(text: &str) -> Result<Layouts, outboard_image::Error> {
    let module: outboard_image::Module = outboard_image::ptx::scan(text)?.into();
    let kernels = module.kernels.into_iter().map(|kernel| {
        let params = kernel.params.iter().map(|p| (p.offset, p.size));
        (kernel.name, params.collect())
    });
    Ok(kernels.collect())
}

fn read_by_device(text: &str, memory: &Memory) -> Result<Layouts, outboard_ptx::Error> {
    let module = Module::load(text, memory)?;
    let kernels = module.kernels().iter().map(|kernel| {
        let params = kernel.params.iter().map(|p| (p.offset, p.bytes));
        (kernel.name.clone(), params.collect())
    });
    Ok(kernels.collect())
}

/// The PTX files below a folder.
fn ptx_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => ptx_files(&path, files),
            false if path.extension().is_some_and(|e| e == "ptx") => files.push(path),
            false => {}
        }
    }
}

#[test]
fn both_parsers_read_the_same_layouts() {
    let mut files = Vec::new();
    ptx_files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        &mut files,
    );
    assert!(files.len() >= FILES_MIN, "{} files", files.len());
    let mut texts = vec![("ODD".into(), ODD.into())];
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        texts.push((file.display().to_string(), text));
    }
    let memory = Memory::reserve(WINDOW_BASE, WINDOW_BYTES, VARIABLES_BYTES).unwrap();
    for (name, text) in texts {
        let client = read_by_client(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        if name.ends_with(REFUSED) {
            assert!(read_by_device(&text, &memory).is_err(), "{name}");
            continue;
        }
        let device = read_by_device(&text, &memory).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(client, device, "{name}");
        // A unit for the linker may have no kernel.
        assert!(!client.is_empty() || !text.contains(".entry"), "{name}");
    }
}
