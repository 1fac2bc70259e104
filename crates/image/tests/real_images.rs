//! Images made by the stock toolchain (`data/build.sh`): we must read what the source says.

#![allow(clippy::unwrap_used, clippy::panic)]

use outboard_image::{
    Attributes, Choice, Encoding, EntryKind, Error, Format, Image, Kernel, Module, Param, Space,
    Variant,
};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("data/", $name)).as_slice()
    };
}

fn only_module(data: &[u8]) -> Module {
    let image = Image::parse(data).unwrap();
    let [entry] = image.entries() else {
        panic!("{} entries", image.entries().len())
    };
    entry.module().unwrap()
}

fn params(kernel: &Kernel) -> Vec<(u32, u32)> {
    kernel
        .params
        .iter()
        .map(|param| (param.offset, param.size))
        .collect()
}

/// Offsets and sizes by the C++ ABI, from `data/kernels.cu`.
const KERNELS: &[(&str, &[(u32, u32)])] = &[
    ("no_params", &[]),
    (
        "mixed",
        &[
            (0, 1),
            (8, 8),
            (16, 2),
            (24, 16),
            (48, 16),
            (64, 1),
            (72, 8),
        ],
    ),
    ("bounded", &[(0, 8), (8, 4)]),
    ("dynamic_shared", &[(0, 8), (8, 4)]),
    ("frame", &[(0, 8), (8, 4)]),
    ("_ZN5space7mangledIfLi3EEEvPT_S1_", &[(0, 8), (8, 4)]),
    ("_ZN5space7mangledIxLi4EEEvPT_S1_", &[(0, 8), (8, 8)]),
    ("wide", &[(0, 8), (8, 5000), (5008, 4)]),
];
const CLUSTER_KERNELS: &[(&str, &[(u32, u32)])] =
    &[("clustered", &[(0, 8)]), ("ranked", &[(0, 8)])];

fn check_kernels(module: &Module, what: &str) {
    let has_clusters = module.arch.number >= 90;
    let expected = KERNELS
        .iter()
        .chain(CLUSTER_KERNELS.iter().filter(|_| has_clusters));
    let mut count = 0;
    for (name, expected) in expected {
        let kernel = module
            .kernel(name)
            .unwrap_or_else(|| panic!("{what}: no {name}"));
        assert_eq!(params(kernel), *expected, "{what}: {name}");
        let is_code = kernel.attributes.registers.is_some();
        let param_bytes = kernel.attributes.param_bytes.unwrap_or(0);
        assert!(
            !is_code || param_bytes == kernel.param_bytes(),
            "{what}: {name}"
        );
        count += 1;
    }
    assert_eq!(module.kernels.len(), count, "{what}");
}

fn check_variables(module: &Module, what: &str) {
    for (name, space, bytes) in [
        ("coefficients", Space::Constant, 64),
        ("counter", Space::Global, 4),
        ("table", Space::Global, 256),
        ("managed", Space::Managed, 4),
    ] {
        let variable = module
            .variable(name)
            .unwrap_or_else(|| panic!("{what}: no {name}"));
        assert_eq!(
            (variable.space, variable.bytes),
            (space, bytes),
            "{what}: {name}"
        );
    }
}

#[test]
fn a_static_library_holds_the_images_of_its_objects() {
    let library = include_bytes!("data/device_functions.a");
    let images = outboard_image::device_code(library).unwrap();
    let texts: Vec<String> = images
        .iter()
        .map(|image| {
            let image = Image::parse(image).unwrap();
            let entry = image.select_ptx(9, 0).unwrap();
            String::from_utf8(entry.bytes().unwrap().into_owned()).unwrap()
        })
        .collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].contains("twice(") && texts[1].contains("thrice("));
    let object = library.windows(4).position(|w| w == b"\x7fELF").unwrap();
    assert_eq!(
        outboard_image::device_code(&library[object..])
            .unwrap()
            .len(),
        1
    );
    // An image is its own; other bytes are none, but in a library nobody minds them.
    let cubin = include_bytes!("data/sm_90.cubin");
    assert_eq!(outboard_image::device_code(cubin).unwrap(), [&cubin[..]]);
    assert!(
        outboard_image::device_code(b"!<arch>\n")
            .unwrap()
            .is_empty()
    );
    for len in (9..library.len()).step_by(97) {
        let _ = outboard_image::device_code(&library[..len]);
    }
    assert!(outboard_image::device_code(&library[..library.len() - 200]).is_err());
}

#[test]
fn every_form_lists_the_kernels_and_variables_of_the_source() {
    for (name, data) in [
        ("sm_80.cubin", data!("sm_80.cubin")),
        ("sm_90.cubin", data!("sm_90.cubin")),
        ("sm_90a.cubin", data!("sm_90a.cubin")),
        ("sm_100.cubin", data!("sm_100.cubin")),
        ("compute_80.ptx", data!("compute_80.ptx")),
        ("compute_90.ptx", data!("compute_90.ptx")),
    ] {
        let module = only_module(data);
        check_kernels(&module, name);
        check_variables(&module, name);
        assert!(!module.relocatable, "{name}");
    }
    for (name, data) in [
        ("targets.fatbin", data!("targets.fatbin")),
        ("debug.fatbin", data!("debug.fatbin")),
    ] {
        for entry in Image::parse(data).unwrap().entries() {
            let what = format!("{name}: {entry}");
            let module = entry.module().unwrap();
            assert_eq!(module.arch.number, entry.arch.number, "{what}");
            check_kernels(&module, &what);
            check_variables(&module, &what);
        }
    }
}

#[test]
fn a_cubin_tells_its_architecture_in_both_layouts() {
    for (data, name) in [
        (data!("sm_80.cubin"), "sm_80"),
        (data!("sm_90.cubin"), "sm_90"),
        (data!("sm_90a.cubin"), "sm_90a"),
        (data!("sm_100.cubin"), "sm_100"),
        (data!("cuda12_sm_80.cubin"), "sm_80"),
        (data!("cuda12_sm_90a.cubin"), "sm_90a"),
    ] {
        let image = Image::parse(data).unwrap();
        assert_eq!(image.format(), Format::Cubin);
        assert_eq!(image.entries()[0].arch.to_string(), name);
    }
}

#[test]
fn cubins_of_the_older_toolkit_have_the_same_parameters() {
    for data in [data!("cuda12_sm_80.cubin"), data!("cuda12_sm_90a.cubin")] {
        let module = only_module(data);
        let [add] = module.kernels.as_slice() else {
            panic!("{module:?}")
        };
        assert_eq!(
            (add.name.as_str(), params(add)),
            ("add", vec![(0, 8), (8, 8), (16, 4)])
        );
        assert_eq!(add.param_bytes(), 20);
        assert_eq!(add.attributes.shared_bytes, Some(0));
    }
}

/// Values that `cuobjdump -elf` and `-res-usage` print.
#[test]
fn attributes_are_those_the_disassembler_prints() {
    let module = only_module(data!("sm_90.cubin"));
    let attributes = |name: &str| module.kernel(name).unwrap().attributes;
    let common = Attributes {
        shared_bytes: Some(0),
        shared_reserved_bytes: Some(1024),
        local_bytes: Some(0),
        constant_bytes: Some(64),
        ..Attributes::default()
    };
    assert_eq!(
        attributes("no_params"),
        Attributes {
            registers: attributes("no_params").registers,
            ..common
        }
    );

    let bounded = attributes("bounded");
    assert_eq!(
        (bounded.shared_bytes, bounded.threads_max, bounded.barriers),
        (Some(256), Some([128, 1, 1]), Some(1))
    );
    assert_eq!(
        (bounded.param_base, bounded.registers_max),
        (Some(0x210), None)
    );
    assert_eq!(attributes("frame").local_bytes, Some(40));
    assert_eq!(attributes("dynamic_shared").registers_max, Some(40));
    let clustered = attributes("clustered");
    assert_eq!(
        (clustered.cluster_required, clustered.cluster_explicit),
        (Some([2, 1, 1]), true)
    );
    let ranked = attributes("ranked");
    assert_eq!(
        (ranked.cluster_blocks_max, ranked.threads_max),
        (Some(4), Some([96, 1, 1]))
    );

    let older = only_module(data!("sm_80.cubin"));
    let bounded = older.kernel("bounded").unwrap().attributes;
    assert_eq!(
        (
            bounded.shared_bytes,
            bounded.shared_reserved_bytes,
            bounded.param_base
        ),
        (Some(256), Some(0), Some(0x160))
    );
    for kernel in module.kernels.iter().chain(&older.kernels) {
        assert!(
            kernel
                .attributes
                .registers
                .is_some_and(|registers| (1..=255).contains(&registers)),
            "{}",
            kernel.name
        );
    }
}

#[test]
fn ptx_directives_become_attributes() {
    let module = only_module(data!("compute_90.ptx"));
    let attributes = |name: &str| module.kernel(name).unwrap().attributes;
    assert_eq!(attributes("bounded").threads_max, Some([128, 1, 1]));
    assert_eq!(attributes("dynamic_shared").registers_max, Some(40));
    assert_eq!(
        (
            attributes("clustered").cluster_required,
            attributes("clustered").cluster_explicit
        ),
        (Some([2, 1, 1]), true)
    );
    assert_eq!(attributes("ranked").cluster_blocks_max, Some(4));
    assert_eq!(attributes("mixed"), Attributes::default());
}

#[test]
fn every_compression_mode_yields_the_same_bytes() {
    let plain: Vec<_> = Image::parse(data!("none.fatbin"))
        .unwrap()
        .entries()
        .iter()
        .map(|e| e.bytes().unwrap().into_owned())
        .collect();
    for (data, encoding) in [
        (data!("none.fatbin"), Encoding::Plain),
        (data!("speed.fatbin"), Encoding::Lz4),
        (data!("balance.fatbin"), Encoding::Zstd),
        (data!("size.fatbin"), Encoding::Zstd),
    ] {
        let image = Image::parse(data).unwrap();
        assert_eq!(image.format(), Format::Fatbin);
        let kinds: Vec<_> = image
            .entries()
            .iter()
            .map(|entry| (entry.kind, entry.arch.number, entry.encoding))
            .collect();
        assert_eq!(
            kinds,
            [
                (EntryKind::Cubin, 80, encoding),
                (EntryKind::Ptx, 80, encoding)
            ]
        );
        for (entry, plain) in image.entries().iter().zip(&plain) {
            // nvcc writes different white space around the PTX it does not compress.
            let bytes = entry.bytes().unwrap();
            assert_eq!(bytes.trim_ascii(), plain.trim_ascii(), "{encoding:?}");
            let kernels = entry.kernels().unwrap();
            assert_eq!(params(&kernels[0]), [(0, 8), (8, 8), (16, 4)]);
        }
        assert_eq!(image.entries()[1].version, (9, 0));
    }
}

#[test]
fn a_debug_build_names_its_source() {
    let image = Image::parse(data!("debug.fatbin")).unwrap();
    assert!(
        image
            .entries()
            .iter()
            .all(|entry| entry.name == Some("kernels.cu"))
    );
}

#[test]
fn relocatable_code_says_so() {
    let module = only_module(data!("relocatable.cubin"));
    assert!(module.relocatable);
    assert_eq!(
        params(module.kernel("add").unwrap()),
        [(0, 8), (8, 8), (16, 4)]
    );
}

#[test]
fn selection_follows_the_driver() {
    let image = Image::parse(data!("targets.fatbin")).unwrap();
    let named: Vec<_> = image.entries().iter().map(ToString::to_string).collect();
    let expected = [
        "cubin sm_75",
        "cubin sm_80",
        "PTX compute_80",
        "cubin sm_90",
        "cubin sm_90a",
        "PTX compute_90a",
        "cubin sm_100f",
        "PTX compute_100f",
    ];
    assert_eq!(named, expected);
    for (major, minor, choice) in [
        (7, 5, "cubin sm_75"),
        (8, 0, "cubin sm_80"),
        (8, 9, "cubin sm_80"),
        (8, 7, "PTX compute_80"),
        (9, 0, "cubin sm_90a"),
        (10, 0, "cubin sm_100f"),
        (10, 3, "cubin sm_100f"),
        (11, 0, "PTX compute_80"),
        (12, 0, "PTX compute_80"),
    ] {
        let choice_made = image.select(major, minor).unwrap();
        assert_eq!(choice_made.entry().to_string(), choice, "{major}.{minor}");
        assert_eq!(
            matches!(choice_made, Choice::Ptx(_)),
            choice.starts_with("PTX")
        );
    }
    for (major, minor, choice) in [
        (8, 0, "PTX compute_80"),
        (9, 0, "PTX compute_90a"),
        (10, 3, "PTX compute_100f"),
    ] {
        assert_eq!(image.select_ptx(major, minor).unwrap().to_string(), choice);
    }
    assert_eq!(image.entries()[4].arch.variant, Variant::Specific);
}

#[test]
fn a_missing_architecture_is_an_error_that_names_those_there() {
    let image = Image::parse(data!("targets.fatbin")).unwrap();
    let error = image.select(7, 0).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the image has no code for a device of compute capability 7.0; it contains cubin sm_75, "), "{text}");

    let image = Image::parse(data!("sm_80.cubin")).unwrap();
    let error = image.select_ptx(8, 0).unwrap_err();
    assert!(
        matches!(&error, Error::NoBinary { ptx_only: true, found, .. } if found == &["cubin sm_80"]),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "the image has no PTX for a device of compute capability 8.0; it contains cubin sm_80"
    );
    assert!(image.select(9, 0).is_err());
}

#[test]
fn link_time_code_is_kept_apart() {
    let image = Image::parse(data!("lto.fatbin")).unwrap();
    assert_eq!(image.entries()[0].kind, EntryKind::Other(8));
    assert_eq!(
        image.entries()[0].module(),
        Err(Error::NoKernelList { kind: 8 })
    );
    assert!(image.select(8, 0).is_err());
}

#[test]
fn ptx_parameters_have_names_and_alignments() {
    let text = std::str::from_utf8(data!("compute_80.ptx")).unwrap();
    let declarations = outboard_image::ptx::scan(text).unwrap();
    assert_eq!(declarations.header.to_string(), "PTX 9.0 for sm_80");
    assert_eq!(declarations.header.address_bits, 64);
    let mixed = declarations
        .entries
        .iter()
        .find(|entry| entry.name == "mixed")
        .unwrap();
    let aligns: Vec<_> = mixed.params.iter().map(|param| param.align).collect();
    assert_eq!(aligns, [1, 8, 2, 8, 16, 1, 8]);
    assert_eq!(mixed.params[6].name, "mixed_param_6");
}

#[test]
fn the_parameter_buffer_ends_with_the_last_parameter() {
    let kernel = |params: &[(u32, u32)]| Kernel {
        name: String::new(),
        params: params
            .iter()
            .map(|&(offset, size)| Param { offset, size })
            .collect(),
        attributes: Attributes::default(),
    };
    assert_eq!(kernel(&[]).param_bytes(), 0);
    assert_eq!(kernel(&[(0, 4), (8, 2)]).param_bytes(), 10);
}
