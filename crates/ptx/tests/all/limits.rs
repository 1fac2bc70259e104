//! Excessive or senseless input: an error with its reason before anything runs, or a fault that
//! ends only the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Arg, Device, noise};
use outboard_ptx::{Error, FaultKind, LaunchError, lower};

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

const KERNELS: &str = "
    .visible .entry plain(.param .u64 out) { ret; }
    .visible .entry small(.param .u64 out) .maxntid 64, 2, 1 { ret; }
    .visible .entry exact(.param .u64 out) .reqntid 32, 4, 1 { ret; }
    .visible .entry shared(.param .u64 out) { .shared .align 16 .b8 s[40000]; ret; }
    .visible .entry divided(.param .u64 out) {
        .reg .u32 %r<2>; .reg .pred %p;
        mov.u32 %r0, %tid.x; setp.lt.u32 %p, %r0, 32; @%p bra other; bar.sync 1, 64; ret; other: bar.sync 2, 64; ret;
    }
    .func ping(.param .b32 a); .func pong(.param .b32 a);
    .func ping(.param .b32 a) { .param .b32 b; .local .b8 l[1024]; call pong, (b); ret; }
    .func pong(.param .b32 a) { .param .b32 b; call ping, (b); ret; }
    .visible .entry cycle(.param .u64 out) { .param .b32 b; call ping, (b); ret; }
    .visible .entry forever(.param .u64 out) { here: bra here; }
    .visible .entry answer(.param .u64 out) { .reg .b64 %rd; ld.param.u64 %rd, [out]; st.global.u32 [%rd], 42; ret; }";

fn device() -> (Device, u64) {
    let device = Device::new(&format!("{HEADER}{KERNELS}"));
    let out = device.alloc(64);
    (device, out)
}

#[test]
fn launches_beyond_a_gpus_limits_are_refused() {
    let (device, out) = device();
    let run =
        |kernel, grid, block, shared| device.try_run(kernel, grid, block, shared, &[Arg::Ptr(out)]);
    let one = [1; 3];
    for (grid, block, what) in [
        (one, [1025, 1, 1], "block extent"),
        (one, [1, 1025, 1], "block extent"),
        (one, [1, 1, 65], "block extent"),
        (one, [32, 33, 1], "threads of a block"),
        ([0x8000_0000, 1, 1], one, "grid extent"),
        ([1, 65536, 1], one, "grid extent"),
        ([1, 1, 65536], one, "grid extent"),
        ([1, 0, 1], one, "an extent of zero"),
        (one, [0, 1, 1], "an extent of zero"),
        ([u32::MAX; 3], [u32::MAX; 3], "grid extent"),
    ] {
        let refused = run("plain", grid, block, 0);
        assert!(
            matches!(&refused, Err(LaunchError::Refused(Error::LaunchLimit { what: said, .. })) if *said == what),
            "{grid:?} {block:?}: {refused:?}"
        );
    }
    let refused = |outcome| {
        matches!(
            outcome,
            Err(LaunchError::Refused(Error::LaunchLimit { .. }))
        )
    };
    // 227 KiB in all, static and dynamic.
    assert!(run("plain", one, one, 227 << 10).is_ok());
    assert!(refused(run("plain", one, one, (227 << 10) + 1)));
    assert!(run("shared", one, one, (227 << 10) - 40_000).is_ok());
    assert!(refused(run("shared", one, one, (227 << 10) - 39_999)));
    assert!(refused(run("plain", one, one, u32::MAX)));
    assert!(run("small", one, [128, 1, 1], 0).is_ok());
    assert!(refused(run("small", one, [129, 1, 1], 0)));
    assert!(run("exact", one, [32, 4, 1], 0).is_ok());
    assert!(refused(run("exact", one, [128, 1, 1], 0)));
    let short = device.try_run("plain", one, one, 0, &[Arg::I32(0)]);
    assert!(matches!(
        short,
        Err(LaunchError::Refused(Error::LaunchParams { .. }))
    ));
}

/// Returns the fault of one kernel, after checking that the next kernel runs.
fn fault(kernel: &str, block: u32) -> FaultKind {
    let (device, out) = device();
    let outcome = device.try_run(kernel, [1; 3], [block, 1, 1], 0, &[Arg::Ptr(out)]);
    device.run("answer", 1, 1, &[Arg::Ptr(out)]);
    assert_eq!(device.download::<u32>(out, 1), [42]);
    match outcome {
        Err(LaunchError::Fault(fault)) => fault.kind,
        other => panic!("{kernel}: {other:?}"),
    }
}

#[test]
fn functions_that_call_each_other_for_ever_overflow_the_stack() {
    assert!(matches!(
        fault("cycle", 64),
        FaultKind::StackOverflow { .. }
    ));
}

#[test]
fn barriers_that_cannot_be_passed_are_named() {
    let kind = fault("divided", 64);
    assert!(
        matches!(&kind, FaultKind::Trap { reason } if reason.contains("deadlock")),
        "{kind:?}"
    );
}

#[test]
fn an_endless_loop_ends_when_it_is_cancelled() {
    let (device, out) = device();
    let device = Arc::new(device);
    let looping = device.clone();
    let kernel = std::thread::spawn(move || {
        looping.try_run("forever", [64, 1, 1], [64, 1, 1], 0, &[Arg::Ptr(out)])
    });
    std::thread::sleep(Duration::from_millis(20));
    device.cancel.store(true, Ordering::Relaxed);
    let outcome = kernel.join().unwrap();
    assert!(matches!(outcome, Err(LaunchError::Fault(f)) if f.kind == FaultKind::LaunchTimeout));
}

#[test]
fn greedy_modules_are_refused_with_the_limit() {
    let body = |text: &str| format!("{HEADER}.visible .entry k() {{\n{text}\nret; }}");
    for (text, what) in [
        (body(".reg .b32 %r<1000000>;"), "registers of a function"),
        (
            body(&".reg .b64 %a<200000>;".repeat(2)),
            "registers of a function",
        ),
        (
            body(&"{ .reg .b32 %r<262143>; }".repeat(65)),
            "registers of a function",
        ),
        (body(".reg .pred %p<100000>;"), "registers of a function"),
        (
            body(".local .b8 l[524289];"),
            "local memory of a thread in bytes",
        ),
        (
            body(".shared .b8 s[240000];"),
            "static shared memory of a kernel in bytes",
        ),
        (
            format!("{HEADER}.const .b8 c[65537];"),
            "constant memory in bytes",
        ),
        (
            format!("{HEADER}.global .b8 g[8589934593];"),
            "bytes of a variable",
        ),
        (
            format!("{HEADER}.visible .entry k(.param .b8 p[40000]) {{ ret; }}"),
            "bytes of parameters",
        ),
    ] {
        let error = lower::check(&text).unwrap_err();
        assert!(
            matches!(&error, Error::Limit { what: said, .. } if *said == what),
            "{}: {error}",
            &text[HEADER.len()..HEADER.len() + 60]
        );
    }
}

#[test]
fn ptx_of_a_later_version_is_refused_by_its_number() {
    let error = lower::check(".version 10.3\n.target sm_80\n.address_size 64\n").unwrap_err();
    assert!(
        matches!(error, Error::Version { found: (10, 3), .. }),
        "{error}"
    );
    assert!(lower::check(".version 9.0\n.target sm_80\n.address_size 64\n").is_ok());
}

#[test]
fn megabytes_of_nonsense_are_refused() {
    let mut random = noise(11);
    let words = [
        "add.s32", "%r1", ",", "{", "}", ";", "0x", "[", "]", "@", "\n", ".reg", ".b32", "(",
        "bra", "mov.u32", "::", "\"", "/*", "1e9",
    ];
    let nonsense: String = (0..4_000_000)
        .map(|_| words[(random() * words.len() as f64) as usize])
        .collect();
    assert!(nonsense.len() > 8_000_000);
    assert!(lower::check(&nonsense).is_err());
    assert!(lower::check(&format!("{HEADER}.visible .entry k() {{ {nonsense}")).is_err());
    // As long a regular text as is refused for one instruction: every line is read, and the error
    // names the last.
    let regular = format!(
        "{HEADER}.visible .entry k() {{ .reg .b32 %r<2>;\n{}wobble;\n}}",
        "add.s32 %r0, %r0, %r1;\n".repeat(180_000)
    );
    let Err(Error::Unsupported { at, .. }) = lower::check(&regular) else {
        panic!("accepted");
    };
    assert_eq!(at.line, 180_005);
}

/// CUB asks how many blocks of a kernel fit, and launches none if the answer is zero.
#[test]
fn the_largest_block_of_a_kernel_has_registers() {
    for (directives, registers) in [
        ("", 64),
        (".maxntid 384, 1, 1", 168),
        (".reqntid 16, 16", 255),
        (".maxntid 512 .minnctapersm 2", 64),
        (".maxntid 1024 .minnctapersm 2", 32),
        (".maxntid 33", 255),
        (".maxntid 256 .maxnreg 40", 40),
    ] {
        let device = Device::new(&format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {directives}\n{{\n.reg .b64 %a<400>;\n{}ret;\n}}\n",
            (1..400)
                .map(|i| format!("add.u64 %a{i}, %a{}, 1;\n", i - 1))
                .collect::<String>()
        ));
        let kernel = device.module.kernel("k").unwrap();
        assert_eq!(kernel.registers, registers, "{directives}");
    }
}
