//! The interpreter is compiled for several instruction sets, and has functions of its own for
//! frequent instructions. All give the same results, to the bit.
use crate::common::{Arg, Device, noise};
use outboard_ptx::check::{Checker, Checks};

/// Compares a kernel's output on this host's instruction set, on the baseline, and watched, where
/// no instruction has a function of its own.
fn both(
    ptx: &str,
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    bytes: usize,
    args: impl Fn(&Device, u64) -> Vec<Arg>,
) {
    let checker = Checker::new(
        Checks {
            memory: true,
            ..Checks::default()
        },
        None,
    );
    let cases = [(false, None), (true, None), (false, Some(&checker))];
    let [host, baseline, general] = cases.map(|(baseline, checker)| {
        let mut device = Device::new(ptx);
        if baseline {
            device.module.use_baseline();
        }
        let out = device.alloc(bytes);
        let stats = device
            .try_run_watched(kernel, grid, block, 0, &args(&device, out), checker)
            .unwrap();
        (device.download::<u32>(out, bytes / 4), stats)
    });
    assert_eq!(host.1, baseline.1, "{kernel}");
    assert!(host.0.iter().any(|&bits| bits != 0), "{kernel}");
    assert_eq!(host.1, general.1, "{kernel}");
    assert!(host.0 == baseline.0, "{kernel}: results differ");
    assert!(host.0 == general.0, "{kernel}: results differ, watched");
}

/// Returns numbers of all magnitudes, and NaNs.
fn floats(n: usize) -> Vec<f32> {
    let mut next = noise(5);
    let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-42];
    (0..n)
        .map(|i| match i % 16 {
            0 => special[i / 16 % special.len()],
            _ => ((next() - 0.5) * 200.0) as f32,
        })
        .collect()
}

#[test]
fn basics_and_shared_memory() {
    let basics = include_str!("data/basics.ptx");
    let n = 48;
    // Blocks of 16x16 use halves of warps; 48 is not a multiple of 32.
    both(
        basics,
        "matmul_tiled",
        [3, 3, 1],
        [16, 16, 1],
        n * n * 4,
        |device, out| {
            let [a, b] = [0; 2].map(|_| Arg::Ptr(device.upload(&floats(n * n))));
            vec![a, b, Arg::Ptr(out), Arg::I32(n as i32)]
        },
    );
    both(
        basics,
        "vector_add",
        [4, 1, 1],
        [100, 1, 1],
        4 * 390,
        |device, out| {
            let [a, b] = [0; 2].map(|_| Arg::Ptr(device.upload(&floats(390))));
            vec![a, b, Arg::Ptr(out), Arg::I32(390)]
        },
    );
    both(
        basics,
        "saxpy_stride",
        [2, 1, 1],
        [64, 1, 1],
        16 * 300,
        |device, out| {
            let x = Arg::Ptr(device.upload(&floats(1200)));
            vec![Arg::F32(1.5), x, Arg::Ptr(out), Arg::I32(300)]
        },
    );
    let pairs = |factor| (1..=200u64).map(|i| i * factor).collect::<Vec<_>>();
    both(
        basics,
        "gcd64",
        [2, 1, 1],
        [128, 1, 1],
        8 * 200,
        |device, out| {
            let [a, b] = [60, 84].map(|f| Arg::Ptr(device.upload(&pairs(f))));
            vec![a, b, Arg::Ptr(out), Arg::I32(200)]
        },
    );
}

#[test]
fn divergence_and_warps() {
    let warp = include_str!("data/warp.ptx");
    both(
        warp,
        "collatz",
        [2, 1, 1],
        [256, 1, 1],
        4 * 500,
        |device, out| {
            let input: Vec<u32> = (1..=500).collect();
            vec![
                Arg::Ptr(device.upload(&input)),
                Arg::Ptr(out),
                Arg::I32(500),
            ]
        },
    );
    both(
        warp,
        "scan_block",
        [1, 1, 1],
        [512, 1, 1],
        4 * 500,
        |device, out| {
            let input: Vec<i32> = (1..=500).collect();
            vec![
                Arg::Ptr(device.upload(&input)),
                Arg::Ptr(out),
                Arg::I32(500),
            ]
        },
    );
    both(
        warp,
        "votes",
        [1, 1, 1],
        [32, 1, 1],
        4 * 16 * 32,
        |device, out| {
            let input: Vec<i32> = (0..32).map(|i| i * 37 % 11).collect();
            vec![Arg::Ptr(device.upload(&input)), Arg::Ptr(out)]
        },
    );
}

#[test]
fn functions_of_floats() {
    let softmax = include_str!("data/softmax.ptx");
    both(
        softmax,
        "softmax_rows",
        [2, 1, 1],
        [96, 1, 1],
        4 * 5 * 70,
        |device, out| {
            let x = Arg::Ptr(device.upload(&floats(5 * 70)));
            vec![x, Arg::Ptr(out), Arg::I32(5), Arg::I32(70)]
        },
    );
    for math in [
        include_str!("data/math.ptx"),
        include_str!("data/math_fast.ptx"),
    ] {
        for which in 0..24 {
            both(
                math,
                "math_f32",
                [2, 1, 1],
                [128, 1, 1],
                4 * 200,
                |device, out| {
                    let x = Arg::Ptr(device.upload(&floats(200)));
                    vec![x, Arg::Ptr(out), Arg::I32(200), Arg::I32(which)]
                },
            );
        }
    }
}

/// Writes a kernel with one instruction per form in the list. Each form reads the three words of a
/// thread: as words `%r1` to `%r3`, halves `%h1` to `%h3` and singles `%f1` to `%f3`; it writes
/// `%r0`, `%h0`, `%f0`, or the predicates `%p0` and `%p1`.
fn forms(list: &[String]) -> String {
    let mut text = ".version 8.3\n.target sm_90\n.address_size 64\n\
        .visible .entry forms(.param .u64 in, .param .u64 out, .param .u32 n) {\n\
        .reg .b64 %rd<8>; .reg .b32 %r<12>; .reg .b16 %h<6>; .reg .f32 %f<6>; .reg .pred %p<4>;\n\
        ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; ld.param.u32 %r11, [n];\n\
        mov.u32 %r8, %tid.x; mov.u32 %r9, %ctaid.x; mov.u32 %r10, %ntid.x; mad.lo.u32 %r8, %r9, %r10, %r8;\n\
        mul.wide.u32 %rd2, %r8, 12; add.u64 %rd2, %rd2, %rd0;\n\
        ld.global.b32 %r1, [%rd2]; ld.global.b32 %r2, [%rd2+4]; ld.global.b32 %r3, [%rd2+8];\n\
        cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; cvt.u16.u32 %h3, %r3;\n\
        mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;\n\
        mul.wide.u32 %rd3, %r8, 4; add.u64 %rd3, %rd3, %rd1; mul.wide.u32 %rd4, %r11, 4;\n"
        .to_owned();
    for form in list {
        let as_word = match form {
            _ if form.contains("%h0") => "cvt.u32.u16 %r0, %h0;",
            _ if form.contains("%f0") => "mov.b32 %r0, %f0;",
            _ if form.contains("%p0") => {
                "selp.u32 %r0, 1, 0, %p0; selp.u32 %r4, 2, 0, %p1; or.b32 %r0, %r0, %r4;"
            }
            _ => "",
        };
        text += &format!("{form} {as_word} st.global.b32 [%rd3], %r0; add.u64 %rd3, %rd3, %rd4;\n");
    }
    text + "ret;\n}\n"
}

/// Returns words that are often halves or singles at the edges of their rounding.
fn edges(n: usize) -> Vec<u32> {
    let mut next = noise(11);
    let mut bits = move || (next() * 4_294_967_296.0) as u32;
    let special: [u32; 12] = [
        0, 0x8000, 1, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0xff80, 0x7f80,
    ];
    // A product and a sum of `f16` that rounding to 24 bits first would put halfway.
    let twice_rounded: [u32; 3] = [0x3c01_3c01, 0x1ffe_1ffe, 0x4c01_4c01];
    (0..n)
        .map(|i| {
            if i / 3 % 32 == 0 {
                return twice_rounded[i % 3];
            }
            let (low, high, kind) = (bits(), bits(), bits());
            let pick = |seed: u32| special[seed as usize % special.len()] ^ (seed >> 9 & 1);
            match kind % 8 {
                0 => low,
                1 => pick(low) | pick(high) << 16,
                2 => pick(low) << 16 | 0x8000,
                // Around the range of `f16`, with short and with halfway mantissas.
                3 => (low & 0x8000_0000) | (95 + high % 50) << 23 | (low & 0x7ff) << 12,
                4 => (low & 0x8000_0000) | (95 + high % 50) << 23 | (low & 0x3ff) << 13 | 0x1000,
                5 => (low & 0x8000_0000) | (100 + high % 60) << 23 | low & 0x7f_8000,
                // Halves with similar exponents, whose sums and products end halfway.
                6 => 0x3800_3800 + (low & 0x0fff_0fff),
                _ => (low & 0x83ff_83ff) | (high & 0x0c00_0c00) | 0x3000_3000,
            }
        })
        .collect()
}

/// Arithmetic and comparisons of floats of 16 bits.
fn arithmetic_of_16_bits() -> Vec<String> {
    let mut list = Vec::new();
    let mut add = |form: String| list.push(form);
    for (ty, registers) in [("f16", "h"), ("f16x2", "r"), ("bf16", "h"), ("bf16x2", "r")] {
        let rows = |n: usize| {
            let rows: Vec<_> = (0..=n).map(|i| format!("%{registers}{i}")).collect();
            rows.join(", ")
        };
        let flags: &[&str] = match ty {
            "f16" | "f16x2" => &["", ".ftz", ".sat", ".ftz.sat"],
            _ => &[""],
        };
        for flag in flags {
            for op in ["add", "sub", "mul"] {
                add(format!("{op}.rn{flag}.{ty} {};", rows(2)));
            }
            add(format!("fma.rn{flag}.{ty} {};", rows(3)));
        }
        add(format!("fma.rn.relu.{ty} {};", rows(3)));
        for op in ["min", "max", "min.NaN", "max.NaN"] {
            add(format!("{op}.{ty} {};", rows(2)));
        }
        for op in ["neg", "abs"] {
            add(format!("{op}.{ty} {};", rows(1)));
        }
        for cmp in [
            "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
            "nan",
        ] {
            let sources = rows(2).split_once(", ").unwrap().1.to_owned();
            let d = match ty.ends_with("x2") {
                true => "%p0|%p1",
                false => "%p0",
            };
            add(format!("setp.{cmp}.{ty} {d}, {sources};"));
        }
    }
    list
}

/// Conversions between floats and integers, by rounding.
fn rounded_conversions() -> Vec<String> {
    let mut list = Vec::new();
    let mut add = |form: String| list.push(form);
    for rounding in ["rn", "rz", "rm", "rp"] {
        for flags in ["", ".sat"] {
            add(format!("cvt.{rounding}{flags}.f16.f32 %h0, %f1;"));
            for integer in ["s32", "u32"] {
                add(format!("cvt.{rounding}{flags}.f16.{integer} %h0, %r1;"));
            }
            for integer in ["s16", "u16"] {
                add(format!("cvt.{rounding}{flags}.f16.{integer} %h0, %h1;"));
            }
        }
        for ftz in ["", ".ftz"] {
            for integer in ["s32", "u32"] {
                add(format!("cvt.{rounding}i{ftz}.{integer}.f32 %r0, %f1;"));
            }
            add(format!("cvt.{rounding}i{ftz}.f32.f32 %f0, %f1;"));
            add(format!("cvt.{rounding}i{ftz}.sat.f32.f32 %f0, %f1;"));
        }
        for integer in ["s32", "u32"] {
            add(format!("cvt.{rounding}i.{integer}.f16 %r0, %h1;"));
        }
        for integer in ["s16", "u16"] {
            add(format!("cvt.{rounding}i.{integer}.f16 %h0, %h1;"));
        }
    }
    for rounding in ["rn", "rz"] {
        for relu in ["", ".relu"] {
            add(format!("cvt.{rounding}{relu}.bf16.f32 %h0, %f1;"));
            add(format!("cvt.{rounding}{relu}.f16x2.f32 %r0, %f1, %f2;"));
            add(format!("cvt.{rounding}{relu}.bf16x2.f32 %r0, %f1, %f2;"));
        }
    }
    list
}

const OTHER_FORMS: [&str; 30] = [
    "cvt.rn.relu.f16.f32 %h0, %f1;",
    "cvt.f32.f16 %f0, %h1;",
    "cvt.sat.f32.f16 %f0, %h1;",
    "cvt.f32.bf16 %f0, %h1;",
    "cvt.sat.f32.f32 %f0, %f1;",
    "cvt.ftz.f32.f32 %f0, %f1;",
    "cvt.ftz.sat.f32.f32 %f0, %f1;",
    "cvt.rn.f32.s32 %f0, %r1;",
    "cvt.rn.f32.u32 %f0, %r1;",
    "cvt.rn.f32.s16 %f0, %h1;",
    "cvt.rn.f32.u16 %f0, %h1;",
    "cvt.s32.s16 %r0, %h1;",
    "cvt.u32.s8 %r0, %r1;",
    "cvt.s16.s8 %h0, %h1;",
    "cvt.u8.u32 %r0, %r1;",
    "cvt.sat.u8.s32 %r0, %r1;",
    "div.u32 %r0, %r1, %r2;",
    "rem.u32 %r0, %r1, %r2;",
    "and.b32 %r5, %r2, 7; div.u32 %r0, %r1, %r5;",
    "and.b32 %r5, %r2, 7; rem.u32 %r0, %r1, %r5;",
    "shr.u32 %r5, %r1, 3; add.u32 %r5, %r5, 1; div.u32 %r0, %r1, %r5;",
    "neg.ftz.f32 %f0, %f1;",
    "abs.ftz.f32 %f0, %f1;",
    "neg.f32 %f0, %f1;",
    "abs.f32 %f0, %f1;",
    "rcp.rn.f32 %f0, %f1;",
    "sqrt.rn.ftz.f32 %f0, %f1;",
    "rsqrt.approx.f32 %f0, %f1;",
    "ex2.approx.f32 %f0, %f1;",
    "mov.b32 %r0, {%h1, %h2};",
];

#[test]
fn floats_of_16_bits() {
    let mut list = arithmetic_of_16_bits();
    list.extend(rounded_conversions());
    list.extend(OTHER_FORMS.map(String::from));
    let threads = 2048;
    both(
        &forms(&list),
        "forms",
        [threads as u32 / 128, 1, 1],
        [128, 1, 1],
        4 * threads * list.len(),
        |device, out| {
            let words = Arg::Ptr(device.upload(&edges(3 * threads)));
            vec![words, Arg::Ptr(out), Arg::I32(threads as i32)]
        },
    );
}

/// Instructions, and the registers of a, b, c and d.
const MATRIX_FORMS: [(&str, [usize; 4]); 11] = [
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        [4, 2, 4, 4],
    ),
    (
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        [4, 2, 2, 2],
    ),
    (
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
        [2, 1, 4, 4],
    ),
    (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        [4, 2, 4, 4],
    ),
    (
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
        [2, 1, 4, 4],
    ),
    (
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
        [4, 2, 4, 4],
    ),
    (
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32",
        [4, 2, 4, 4],
    ),
    (
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
        [1, 1, 2, 2],
    ),
    (
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32",
        [4, 2, 4, 4],
    ),
    (
        "wmma.mma.sync.aligned.row.col.m32n8k16.f16.f32",
        [8, 8, 8, 4],
    ),
    (
        "wmma.mma.sync.aligned.row.row.m8n32k16.f32.f16",
        [8, 8, 4, 8],
    ),
];

/// Eight warps that each multiply matrices of random bits: halves, pairs, bytes, and 32 bits.
fn matrices() -> String {
    let mut text = ".version 8.3\n.target sm_80\n.address_size 64\n\
        .visible .entry matrices(.param .u64 in, .param .u64 out) {\n\
        .reg .b64 %rd<8>; .reg .b32 %r<32>;\n\
        ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r30, %tid.x; mov.u32 %r31, %ctaid.x;\n\
        shl.b32 %r31, %r31, 5; add.u32 %r30, %r30, %r31; mul.wide.u32 %rd2, %r30, 4; add.u64 %rd0, %rd0, %rd2;\n\
        add.u64 %rd1, %rd1, %rd2;\n"
        .to_owned();
    for i in 0..24 {
        text += &format!("ld.global.b32 %r{i}, [%rd0+{}];\n", i * 1024);
    }
    let list = |from: usize, n: usize| {
        let rows: Vec<_> = (from..from + n).map(|r| format!("%r{r}")).collect();
        format!("{{{}}}", rows.join(","))
    };
    let mut at = 0;
    for (form, [a, b, c, d]) in MATRIX_FORMS {
        let sources = [list(0, a), list(8, b), list(16, c)].join(",");
        text += &format!(
            "{{ .reg .b32 %d<8>;\n{form} {}, {sources};\n",
            list(0, d).replace("%r", "%d")
        );
        for i in 0..d {
            text += &format!("st.global.b32 [%rd1+{}], %d{i};\n", at * 1024);
            at += 1;
        }
        text += "}\n";
    }
    text + "ret;\n}\n"
}

#[test]
fn products_of_matrices() {
    for small in [false, true] {
        both(
            &matrices(),
            "matrices",
            [8, 1, 1],
            [32, 1, 1],
            1024 * 46,
            |device, out| {
                let words = edges(24 * 256).into_iter();
                // Halves around one, whose sums are finite.
                let words = words.map(|w| {
                    if small {
                        w & 0x87ff_87ff | 0x3800_3800
                    } else {
                        w
                    }
                });
                let words: Vec<u32> = words.collect();
                vec![Arg::Ptr(device.upload(&words)), Arg::Ptr(out)]
            },
        );
    }
}

/// Loads and stores of all sizes by lanes in any order, and atomics on few words of shared memory
/// by other warps.
#[test]
fn accesses_in_any_order() {
    let mut text = ".version 8.3\n.target sm_80\n.address_size 64\n.shared .align 4 .b8 cells[32];\n\
        .visible .entry accesses(.param .u64 in, .param .u64 out) {\n\
        .reg .b64 %rd<12>; .reg .b32 %r<24>; .reg .b16 %h<4>; .reg .f32 %f<4>;\n\
        ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;\n\
        mad.lo.u32 %r0, %r1, 32, %r0; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;\n\
        ld.global.b32 %r2, [%rd3]; and.b32 %r3, %r2, 255; mul.wide.u32 %rd5, %r3, 4; add.u64 %rd5, %rd0, %rd5;\n\
        ld.global.b32 %r4, [%rd5+4]; st.global.b32 [%rd4], %r4;\n\
        mul.wide.u32 %rd6, %r3, 8; add.u64 %rd6, %rd0, %rd6;\n\
        ld.global.b64 %rd7, [%rd6+8]; cvt.u32.u64 %r4, %rd7; st.global.b32 [%rd4+1024], %r4;\n\
        xor.b32 %r5, %r0, 5; mul.wide.u32 %rd8, %r5, 4; add.u64 %rd8, %rd1, %rd8; st.global.b32 [%rd8+2048], %r4;\n\
        mul.wide.u32 %rd8, %r5, 8; add.u64 %rd8, %rd1, %rd8; st.global.b64 [%rd8+4096], %rd7;\n"
        .to_owned();
    for (i, ty) in ["u8", "s8", "u16", "s16"].into_iter().enumerate() {
        let (size, at) = (1 + i / 2, 6144 + i * 1024);
        text += &format!(
            "mul.wide.u32 %rd9, %r3, {size}; add.u64 %rd9, %rd0, %rd9; ld.global.{ty} %r6, [%rd9+{size}];\n\
             st.global.b32 [%rd4+{at}], %r6;\n"
        );
    }
    text +=
        "and.b32 %r7, %r2, 7; shl.b32 %r7, %r7, 2; mov.u32 %r8, cells; add.u32 %r7, %r7, %r8;\n";
    let mut at = 10240;
    for op in [
        "add.u32", "and.b32", "or.b32", "xor.b32", "min.s32", "max.u32", "min.u32", "max.s32",
    ] {
        text += &format!(
            "atom.shared.{op} %r9, [%r7], %r2; st.global.b32 [%rd4+{at}], %r9; atom.shared.{op} _, [%r7+0], 3;\n"
        );
        at += 1024;
    }
    text += &format!(
        "atom.shared.exch.b32 %r9, [%r7], 0; cvt.rn.f32.u32 %f1, %r2; atom.shared.add.f32 %f2, [%r7], %f1;\n\
         st.global.f32 [%rd4+{at}], %f2; ld.shared.b32 %r10, [%r7]; st.global.b32 [%rd4+{}], %r10;\n",
        at + 1024
    );
    at += 2048;
    text += &format!(
        "mul.wide.u32 %rd9, %r0, 16; add.u64 %rd10, %rd0, %rd9; add.u64 %rd11, %rd1, %rd9;\n\
         ld.global.v4.b32 {{%r11, %r12, _, %r13}}, [%rd10]; mov.b32 %r14, 7;\n\
         st.global.v4.b32 [%rd11+{at}], {{%r13, %r14, %r12, %r11}};\n\
         ld.global.v2.b32 {{%r15, %r16}}, [%rd10+8]; shr.u64 %rd9, %rd9, 1; add.u64 %rd11, %rd1, %rd9;\n\
         st.global.v2.b32 [%rd11+{}], {{%r16, %r15}};\nret;\n}}\n",
        at + 4096
    );
    both(
        &text,
        "accesses",
        [8, 1, 1],
        [32, 1, 1],
        at + 4096 + 2048,
        |device, out| {
            let words = Arg::Ptr(device.upload(&edges(1200)));
            vec![words, Arg::Ptr(out)]
        },
    );
}
