//! `mma`.

use super::forms::{F16, F32, Form, Layout, S4, S8, Ty, U4, U8, check, execute};
use crate::common::noise;

// Layouts, from the figures of "Matrix Fragments for mma": groupID = lane >> 2,
// threadID_in_group = lane % 4.

fn c_16x8(lane: usize, i: usize) -> [usize; 2] {
    [lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1)]
}

fn c_8x8(lane: usize, i: usize) -> [usize; 2] {
    [lane / 4, lane % 4 * 2 + i]
}

/// Places of the elements of a, b, and c and d for 16-bit floats.
const HALVES_K8: [Layout; 3] = [
    |l, i| [l / 4 + if i < 2 { 0 } else { 8 }, l % 4 * 2 + (i & 1)],
    |l, i| [l % 4 * 2 + i, l / 4],
    c_16x8,
];
const HALVES_K16: [Layout; 3] = [
    |l, i| {
        let row = if i < 2 || (4..6).contains(&i) {
            l / 4
        } else {
            l / 4 + 8
        };
        [row, l % 4 * 2 + (i & 1) + if i < 4 { 0 } else { 8 }]
    },
    |l, i| [l % 4 * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, l / 4],
    c_16x8,
];

#[test]
fn sixteen_bit_floats() {
    for (opcode, shape, types, counts, places) in [
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
            [16, 8, 8],
            [F16, F16, F32, F32],
            [2, 1, 4, 4],
            HALVES_K8,
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16",
            [16, 8, 8],
            [F16, F16, F16, F16],
            [2, 1, 2, 2],
            HALVES_K8,
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
            [16, 8, 8],
            [Ty::Bf16, Ty::Bf16, F32, F32],
            [2, 1, 4, 4],
            HALVES_K8,
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            [16, 8, 16],
            [F16, F16, F32, F32],
            [4, 2, 4, 4],
            HALVES_K16,
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
            [16, 8, 16],
            [F16, F16, F16, F16],
            [4, 2, 2, 2],
            HALVES_K16,
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            [16, 8, 16],
            [Ty::Bf16, Ty::Bf16, F32, F32],
            [4, 2, 4, 4],
            HALVES_K16,
        ),
    ] {
        check(&Form {
            opcode,
            shape,
            types,
            counts,
            places,
        });
    }
}

#[test]
fn tf32_and_doubles() {
    let types = [Ty::Tf32, Ty::Tf32, F32, F32];
    check(&Form {
        opcode: "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
        shape: [16, 8, 4],
        types,
        counts: [2, 1, 4, 4],
        places: [|l, i| [l / 4 + 8 * i, l % 4], |l, _| [l % 4, l / 4], c_16x8],
    });
    check(&Form {
        opcode: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        shape: [16, 8, 8],
        types,
        counts: [4, 2, 4, 4],
        places: [
            |l, i| {
                [
                    l / 4 + if i == 0 || i == 2 { 0 } else { 8 },
                    l % 4 + if i < 2 { 0 } else { 4 },
                ]
            },
            |l, i| [l % 4 + 4 * i, l / 4],
            c_16x8,
        ],
    });
    for opcode in [
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "mma.sync.aligned.m8n8k4.row.col.rz.f64.f64.f64.f64",
        // The layouts of `wmma` are its own; here those of `mma` apply.
        "wmma.mma.sync.aligned.row.row.m8n8k4.rn.f64.f64.f64.f64",
    ] {
        check(&Form {
            opcode,
            shape: [8, 8, 4],
            types: [Ty::F64; 4],
            counts: [1, 1, 2, 2],
            places: [|l, _| [l / 4, l % 4], |l, _| [l % 4, l / 4], c_8x8],
        });
    }
}

#[test]
fn quarters_of_a_warp() {
    // m8n8k4: four independent products. Each is checked as one of 32 rows of which only its lanes'
    // count.
    for (a_layout, b_layout) in [
        ("row", "col"),
        ("row", "row"),
        ("col", "col"),
        ("col", "row"),
    ] {
        for (d, c) in [(F32, F32), (F16, F16), (F32, F16)] {
            quarter_product(a_layout, b_layout, c, d);
        }
    }
}

/// A product of a quarter of a warp; lanes from 16 on have the other half of the rows or columns.
struct Quarter<'q> {
    a_layout: &'q str,
    b_layout: &'q str,
}

fn high(lane: usize) -> usize {
    if lane < 16 { 0 } else { 4 }
}

impl Quarter<'_> {
    fn place_a(&self, lane: usize, i: usize) -> [usize; 2] {
        match self.a_layout {
            "row" => [lane % 4 + high(lane), i],
            _ => [i % 4 + high(lane), lane % 4],
        }
    }

    fn place_b(&self, lane: usize, i: usize) -> [usize; 2] {
        match self.b_layout {
            "row" => [lane % 4, i + high(lane)],
            _ => [i, lane % 4 + high(lane)],
        }
    }

    fn place_c(ty: Ty, lane: usize, i: usize) -> [usize; 2] {
        match ty {
            F16 => [lane % 4 + high(lane), i],
            _ => [
                (lane & 1) + (i & 2) + high(lane),
                (i & 4) + (lane & 2) + (i & 1),
            ],
        }
    }
}

/// Returns the registers of a matrix whose elements `value(lane, i)` returns.
fn registers(ty: Ty, elements: usize, value: &dyn Fn(usize, usize) -> f64) -> Vec<[u64; 32]> {
    let per = 32 / ty.bits();
    let mut out = vec![[0u64; 32]; elements / per];
    for lane in 0..32 {
        for i in 0..elements {
            out[i / per][lane] |= ty.encode(value(lane, i)) << (i % per * ty.bits());
        }
    }
    out
}

fn quarter_product(a_layout: &str, b_layout: &str, c: Ty, d: Ty) {
    let name = |ty| if ty == F16 { "f16" } else { "f32" };
    let opcode = format!(
        "mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{}.f16.f16.{}",
        name(d),
        name(c)
    );
    let places = Quarter { a_layout, b_layout };
    let quarter = |lane: usize| lane % 16 / 4;
    let mut random = noise(44);
    let mut matrix = |n: usize| -> Vec<f64> { (0..n).map(|_| F16.value(&mut random)).collect() };
    let (x, y, z) = (matrix(4 * 32), matrix(4 * 32), matrix(4 * 64));
    let inputs = [
        registers(F16, 4, &|l, i| {
            let [r, j] = places.place_a(l, i);
            x[quarter(l) * 32 + r * 4 + j]
        }),
        registers(F16, 4, &|l, i| {
            let [r, j] = places.place_b(l, i);
            y[quarter(l) * 32 + r * 8 + j]
        }),
        registers(c, 8, &|l, i| {
            let [r, j] = Quarter::place_c(c, l, i);
            z[quarter(l) * 64 + r * 8 + j]
        }),
    ];
    let count = |ty: Ty| ty.bits() / 4;
    let form = Form {
        opcode: opcode.clone().leak(),
        shape: [8, 8, 4],
        types: [F16, F16, c, d],
        counts: [2, 2, count(c), count(d)],
        places: [|_, _| [0, 0]; 3],
    };
    let out = execute(&form, &inputs);
    let per = 32 / d.bits();
    for lane in 0..32 {
        for i in 0..8 {
            let ([r, j], q) = (Quarter::place_c(d, lane, i), quarter(lane));
            let sum: f64 = (0..4)
                .map(|l| x[q * 32 + r * 4 + l] * y[q * 32 + l * 8 + j])
                .sum();
            let got = d
                .decode(out[i / per][lane] >> (i % per * d.bits()) & (u64::MAX >> (64 - d.bits())));
            assert_eq!(
                got,
                sum + z[q * 64 + r * 8 + j],
                "{opcode} quarter {q} row {r} column {j}"
            );
        }
    }
}

const BYTES: [(Ty, Ty); 4] = [(S8, S8), (U8, S8), (S8, U8), (U8, U8)];
const NIBBLES: [(Ty, Ty); 4] = [(S4, S4), (U4, S4), (S4, U4), (U4, U4)];
const BYTES_M8N8K16: [Layout; 3] = [
    |l, i| [l / 4, l % 4 * 4 + i],
    |l, i| [l % 4 * 4 + i, l / 4],
    c_8x8,
];
const BYTES_M16N8K16: [Layout; 3] = [
    |l, i| [l / 4 + if i < 4 { 0 } else { 8 }, l % 4 * 4 + (i & 3)],
    |l, i| [l % 4 * 4 + i, l / 4],
    c_16x8,
];
const BYTES_M16N8K32: [Layout; 3] = [
    |l, i| {
        let row = if i < 4 || (8..12).contains(&i) {
            l / 4
        } else {
            l / 4 + 8
        };
        [row, l % 4 * 4 + (i & 3) + if i < 8 { 0 } else { 16 }]
    },
    |l, i| [l % 4 * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, l / 4],
    c_16x8,
];
const NIBBLES_M8N8K32: [Layout; 3] = [
    |l, i| [l / 4, l % 4 * 8 + i],
    |l, i| [l % 4 * 8 + i, l / 4],
    c_8x8,
];
const NIBBLES_M16N8K32: [Layout; 3] = [
    |l, i| [l / 4 + if i < 8 { 0 } else { 8 }, l % 4 * 8 + (i & 7)],
    |l, i| [l % 4 * 8 + i, l / 4],
    c_16x8,
];
const NIBBLES_M16N8K64: [Layout; 3] = [
    |l, i| {
        let row = if i < 8 || (16..24).contains(&i) {
            l / 4
        } else {
            l / 4 + 8
        };
        [row, l % 4 * 8 + (i & 7) + if i < 16 { 0 } else { 32 }]
    },
    |l, i| [l % 4 * 8 + (i & 7) + if i < 8 { 0 } else { 32 }, l / 4],
    c_16x8,
];

fn name(ty: Ty) -> &'static str {
    match ty {
        Ty::Int {
            bits: 8,
            signed: true,
        } => "s8",
        Ty::Int { bits: 8, .. } => "u8",
        Ty::Int { signed: true, .. } => "s4",
        _ => "u4",
    }
}

#[test]
fn integers() {
    for (shape, extents, pairs, counts, places) in [
        ("m8n8k16", [8, 8, 16], BYTES, [1, 1, 2, 2], BYTES_M8N8K16),
        ("m16n8k16", [16, 8, 16], BYTES, [2, 1, 4, 4], BYTES_M16N8K16),
        ("m16n8k32", [16, 8, 32], BYTES, [4, 2, 4, 4], BYTES_M16N8K32),
        (
            "m8n8k32",
            [8, 8, 32],
            NIBBLES,
            [1, 1, 2, 2],
            NIBBLES_M8N8K32,
        ),
        (
            "m16n8k32",
            [16, 8, 32],
            NIBBLES,
            [2, 1, 4, 4],
            NIBBLES_M16N8K32,
        ),
        (
            "m16n8k64",
            [16, 8, 64],
            NIBBLES,
            [4, 2, 4, 4],
            NIBBLES_M16N8K64,
        ),
    ] {
        for ((a, b), saturate) in pairs.iter().flat_map(|&p| [(p, ""), (p, ".satfinite")]) {
            let (x, y) = (name(a), name(b));
            let opcode = format!("mma.sync.aligned.{shape}.row.col{saturate}.s32.{x}.{y}.s32");
            check(&Form {
                opcode: opcode.leak(),
                shape: extents,
                types: [a, b, Ty::S32, Ty::S32],
                counts,
                places,
            });
        }
    }
}

#[test]
fn single_bits() {
    for op in ["xor", "and"] {
        let form = |shape: &str, extents, counts, places| {
            let opcode = format!("mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{op}.popc");
            let types = [Ty::Bit, Ty::Bit, Ty::S32, Ty::S32];
            check(&Form {
                opcode: opcode.leak(),
                shape: extents,
                types,
                counts,
                places,
            });
        };
        let small: [Layout; 3] = [
            |l, i| [l / 4, l % 4 * 32 + i],
            |l, i| [l % 4 * 32 + i, l / 4],
            c_8x8,
        ];
        form("m8n8k128", [8, 8, 128], [1, 1, 2, 2], small);
        form(
            "m16n8k128",
            [16, 8, 128],
            [2, 1, 4, 4],
            [
                |l, i| [l / 4 + if i < 32 { 0 } else { 8 }, l % 4 * 32 + (i & 31)],
                |l, i| [l % 4 * 32 + i, l / 4],
                c_16x8,
            ],
        );
        form(
            "m16n8k256",
            [16, 8, 256],
            [4, 2, 4, 4],
            [
                |l, i| {
                    let row = if i < 32 || (64..96).contains(&i) {
                        l / 4
                    } else {
                        l / 4 + 8
                    };
                    [row, l % 4 * 32 + (i & 31) + if i < 64 { 0 } else { 128 }]
                },
                |l, i| [l % 4 * 32 + (i & 31) + if i < 32 { 0 } else { 128 }, l / 4],
                c_16x8,
            ],
        );
        let opcode = format!("wmma.mma.{op}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32");
        check(&Form {
            opcode: opcode.leak(),
            shape: [8, 8, 128],
            types: [Ty::Bit, Ty::Bit, Ty::S32, Ty::S32],
            counts: [1, 1, 2, 2],
            places: small,
        });
    }
}

#[test]
fn saturation_clamps_and_its_absence_wraps() {
    for (saturate, expected) in [(".satfinite", i32::MAX), ("", i32::MIN)] {
        let opcode = format!("mma.sync.aligned.m8n8k16.row.col{saturate}.s32.u8.u8.s32");
        let form = Form {
            opcode: opcode.leak(),
            shape: [8, 8, 16],
            types: [U8, U8, Ty::S32, Ty::S32],
            counts: [1, 1, 2, 2],
            places: [|_, _| [0, 0]; 3],
        };
        // 16 ones times 16 ones, of which all but the first of a lane's four are zero: 4 more than
        // i32::MAX - 3.
        let inputs = [vec![[1; 32]], vec![[1; 32]], vec![[0x7fff_fffc; 32]; 2]];
        let out = execute(&form, &inputs);
        assert!(out.iter().flatten().all(|&v| v as u32 as i32 == expected));
    }
}

#[test]
fn sums_are_rounded_once_and_nans_are_canonical() {
    let form = Form {
        opcode: "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        shape: [16, 8, 8],
        types: [F16, F16, F32, F32],
        counts: [2, 1, 4, 4],
        places: [|_, _| [0, 0]; 3],
    };
    let run = |a: u64, b: u64, c: u32| {
        let inputs = [vec![[a; 32]; 2], vec![[b; 32]], vec![[c.into(); 32]; 4]];
        execute(&form, &inputs)[0][0] as u32
    };
    let ones = 0x3c00_3c00;
    // 2^24 + 8 * 1: each 1 alone would be lost by half, together they are not.
    assert_eq!(
        f32::from_bits(run(ones, ones, 16_777_216f32.to_bits())),
        16_777_224.0
    );
    // Subnormal halves count: 8 * 2^-24 * 1.
    assert_eq!(f32::from_bits(run(0x0001_0001, ones, 0)), 2f32.powi(-21));
    assert_eq!(run(0x7c00_7c00, 0, 0), 0x7fff_ffff, "infinity times zero");
    assert_eq!(run(0x7c00_7c00, ones, 0), 0x7f80_0000);
    assert_eq!(run(ones, ones, 0xffc0_0001), 0x7fff_ffff);
}
