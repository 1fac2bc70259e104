//! Static shared memory: a kernel has the variables that it and the functions below it name.

use crate::common::{Arg, Device};
use outboard_ptx::{Error, lower};

fn text(body: &str) -> String {
    format!(".version 7.0\n.target sm_80\n.address_size 64\n{body}")
}

/// Static bytes of kernels, in the order of the text.
fn bytes(text: &str) -> Vec<(String, u32)> {
    let device = Device::new(text);
    let kernels = device.module.kernels().iter();
    kernels.map(|k| (k.name.clone(), k.shared_bytes)).collect()
}

const FUNCTIONS: &str = "\
.shared .align 4 .b8 a[32000];
.shared .align 4 .b8 b[32000];
.shared .align 4 .b8 c[100];
.shared .align 4 .b8 unused[5000];
.func f1() { .reg .u32 x; mov.u32 x, a; st.shared.u32 [x], x; ret; }
.func f2() { .reg .u32 x; mov.u32 x, b; st.shared.u32 [x], x; ret; }
.func f3() { .reg .u32 x; .shared .align 4 .b8 own[64]; st.shared.u32 [own], x; st.shared.u32 [c+4], x; ret; }
.func f13() { call f1; call f3; ret; }
";

/// The numbers are those of ptxas 13.0 (`-v`).
#[test]
fn a_kernel_is_charged_for_its_calls() {
    let kernels = ".entry k1() { call f1; ret; }
        .entry k2() { call f2; ret; }
        .entry k3() { .shared .b8 mine[3]; call f3; ret; }
        .entry k13() { .reg .pred p; @p call f13; call f1; ret; }
        .entry none() { ret; }";
    let expected = [
        ("k1", 32000),
        ("k2", 32000),
        ("k3", 167),
        ("k13", 32164),
        ("none", 0),
    ];
    let found = bytes(&text(&format!("{FUNCTIONS}{kernels}")));
    assert_eq!(
        found,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
}

/// Variables count in the order of the text, each with its alignment, those of a kernel last.
#[test]
fn alignment_is_charged() {
    let before = ".shared .align 1 .b8 x[1]; .shared .align 8 .b8 y[8]; .shared .align 1 .b8 z[1];
        .shared .align 64 .b8 w[4];
        .func fd() { .reg .u32 r; .shared .b8 unused[40]; .shared .b8 mine[3]; st.shared.u8 [mine], r; ret; }";
    let kernels = ".entry k() { .reg .u32 r; mov.u32 r, z; mov.u32 r, x; st.shared.u8 [y], r; st.shared.u8 [w+1], r; ret; }
        .entry kd() { .reg .u32 r; .shared .b8 unused[40]; .shared .b8 mine[3]; st.shared.u8 [mine], r; mov.u32 r, z; ret; }
        .entry kc() { call fd; ret; }";
    let found = bytes(&text(&format!("{before}{kernels}")));
    let expected = [("k", 68), ("kd", 44), ("kc", 43)];
    assert_eq!(
        found,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
}

/// A function that calls indirectly or takes an address reaches all whose address is taken.
#[test]
fn indirect_calls_reach_every_address_that_is_taken() {
    let kernels = ".global .u64 tab[2] = {f2, f3};
        .entry indirect(.param .u64 p) { .reg .u64 x; ld.param.u64 x, [p];
        proto: .callprototype _ (); call x, (), proto; ret; }
        .func low(.reg .u64 x) { proto: .callprototype _ (); call x, (), proto; ret; }
        .entry below() { .shared .align 4 .b8 mine[16]; call low, (0); ret; }
        .entry takes() { .reg .u64 x; mov.u64 x, f3; st.global.u64 [tab], x; ret; }
        .entry direct() { call f1; ret; }";
    let found = bytes(&text(&format!("{FUNCTIONS}{kernels}")));
    let expected = [
        ("indirect", 32164),
        ("below", 32180),
        ("takes", 32164),
        ("direct", 32000),
    ];
    assert_eq!(
        found,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
}

/// ptxas refuses such a text, for every architecture.
#[test]
fn a_kernel_with_more_than_48_kib_is_refused() {
    for kernel in [
        ".entry k() { call f1; call f2; ret; }",
        ".entry k() { .shared .b8 mine[17153]; call f1; ret; }",
    ] {
        let text = text(&format!(
            "{FUNCTIONS}.entry fine() {{ call f1; ret; }}\n{kernel}"
        ));
        let Err(Error::Limit {
            at, what, limit, ..
        }) = lower::check(&text)
        else {
            panic!("{kernel}");
        };
        assert_eq!(
            (what, limit),
            ("static shared memory of a kernel in bytes", 49152)
        );
        let line = text.lines().nth(at.line as usize - 1).unwrap();
        assert!(line.starts_with(".entry k()"), "{line}");
    }
    let most = ".entry k() { .shared .b8 mine[17152]; call f1; ret; }";
    assert!(lower::check(&text(&format!("{FUNCTIONS}{most}"))).is_ok());
}

/// Variables that meet in a kernel lie apart, whatever other kernels have, and dynamic shared
/// memory comes after all of them.
#[test]
fn variables_of_a_kernel_lie_apart() {
    let mut before = String::from(".extern .shared .align 16 .b8 dynamic[];\n");
    for (name, bytes) in [("p", 16000), ("q", 12000), ("r", 8000)] {
        before += &format!(
            ".shared .align 4 .b8 {name}[{bytes}];\n\
             .func f{name}(.reg .u32 v) {{ st.shared.u32 [{name}], v; st.shared.u32 [{name}+{}], v; ret; }}\n\
             .func (.reg .u32 v) g{name}() {{ .reg .u32 w; ld.shared.u32 v, [{name}]; ld.shared.u32 w, [{name}+{}]; add.u32 v, v, w; ret; }}\n",
            bytes - 4,
            bytes - 4
        );
    }
    for pair in ["pq", "qr", "pr"] {
        let (one, two) = pair.split_at(1);
        before += &format!(
            ".entry {pair}(.param .u64 out) {{ .reg .u64 o; .reg .u32 a, b, d; .shared .u32 own; ld.param.u64 o, [out];\n\
             st.shared.u32 [dynamic], 9; st.shared.u32 [dynamic+60], 9; st.shared.u32 [own], 5;\n\
             call f{one}, (1); call f{two}, (3); call (a), g{one}, (); call (b), g{two}, ();\n\
             st.global.u32 [o], a; st.global.u32 [o+4], b; ld.shared.u32 d, [own]; st.global.u32 [o+8], d;\n\
             ld.shared.u32 d, [dynamic]; st.global.u32 [o+12], d; mov.u32 d, %total_smem_size; st.global.u32 [o+16], d; ret; }}\n"
        );
    }
    let device = Device::new(&text(&before));
    for (pair, total) in [("pq", 28004), ("qr", 20004), ("pr", 24004)] {
        let out = device.alloc(20);
        device
            .try_run(pair, [1; 3], [1; 3], 64, &[Arg::Ptr(out)])
            .unwrap();
        let total: u32 = total + 64;
        let expected = [2, 6, 5, 9, total.next_multiple_of(128)];
        assert_eq!(device.download::<u32>(out, 5), expected, "{pair}");
        assert_eq!(device.module.kernel(pair).unwrap().shared_bytes, total - 64);
    }
}

/// Units have variables and functions of the same names.
#[test]
fn units_are_kept_apart() {
    let unit = |bytes: u32, kernel: &str| {
        text(&format!(
            ".shared .align 4 .b8 s[{bytes}];\n.func f() {{ st.shared.u32 [s], 1; ret; }}\n.entry {kernel}() {{ call f; ret; }}\n"
        ))
    };
    let found = bytes(&(unit(400, "one") + &unit(800, "two")));
    let expected = [("one", 400), ("two", 800)];
    assert_eq!(
        found,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
}
