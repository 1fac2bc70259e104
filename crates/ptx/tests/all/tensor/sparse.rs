//! `mma.sp` against the product of the whole matrices. Layouts are also compared with an H200, by
//! `crates/truth`.

use super::forms::{F16, F32, Layout, S4, S8, Ty, U4, U8, kernel, pack};
use crate::common::{Arg, Device, noise};

struct Case {
    opcode: &'static str,
    k: usize,
    /// Types of a, of b, and of c and d.
    types: [Ty; 3],
    selectors: usize,
}

/// Returns the elements of a row that share a piece of metadata, and the elements per number in it.
fn chunk(ty: Ty) -> (usize, usize) {
    match ty.bits() {
        32 => (2, 1),
        4 => (8, 2),
        _ => (4, 1),
    }
}

#[test]
fn products_are_those_of_the_whole_matrices() {
    let s32 = Ty::S32;
    let bf16 = Ty::Bf16;
    for (opcode, k, types, selectors) in [
        ("m16n8k16.row.col.f32.f16.f16.f32", 16, [F16, F16, F32], 4),
        ("m16n8k16.row.col.f16.f16.f16.f16", 16, [F16, F16, F16], 4),
        ("m16n8k32.row.col.f32.f16.f16.f32", 32, [F16, F16, F32], 2),
        (
            "m16n8k16.row.col.f32.bf16.bf16.f32",
            16,
            [bf16, bf16, F32],
            4,
        ),
        (
            "m16n8k32.row.col.f32.bf16.bf16.f32",
            32,
            [bf16, bf16, F32],
            2,
        ),
        (
            "m16n8k8.row.col.f32.tf32.tf32.f32",
            8,
            [Ty::Tf32, Ty::Tf32, F32],
            4,
        ),
        (
            "m16n8k16.row.col.f32.tf32.tf32.f32",
            16,
            [Ty::Tf32, Ty::Tf32, F32],
            2,
        ),
        ("m16n8k32.row.col.s32.s8.u8.s32", 32, [S8, U8, s32], 2),
        (
            "m16n8k32.row.col.satfinite.s32.u8.s8.s32",
            32,
            [U8, S8, s32],
            2,
        ),
        ("m16n8k64.row.col.s32.s8.s8.s32", 64, [S8, S8, s32], 1),
        ("m16n8k64.row.col.s32.s4.u4.s32", 64, [S4, U4, s32], 2),
        ("m16n8k128.row.col.s32.u4.u4.s32", 128, [U4, U4, s32], 1),
    ] {
        for selector in 0..selectors {
            check(
                &Case {
                    opcode,
                    k,
                    types,
                    selectors,
                },
                selector,
            );
        }
    }
}

const M: usize = 16;
const N: usize = 8;

/// A matrix of which half of the elements are kept.
struct Sparse {
    whole: Vec<f64>,
    stored: Vec<f64>,
    metadata: [u32; 32],
}

impl Sparse {
    fn new(case: &Case, selector: usize, random: &mut impl FnMut() -> f64) -> Sparse {
        let (k, [a, _, c]) = (case.k, case.types);
        let (chunk, run) = chunk(a);
        let (chunks, places) = (k / chunk, chunk / run);
        let mut out = Sparse {
            whole: vec![0.0; M * k],
            stored: vec![0.0; M * k / 2],
            metadata: [0; 32],
        };
        for (row, i) in (0..M).flat_map(|row| (0..chunks).map(move |i| (row, i))) {
            let (kept, nibble) = kept(places, random);
            for (j, place) in kept.iter().enumerate() {
                for e in 0..run {
                    let value = a.value(random);
                    out.whole[row * k + i * chunk + place * run + e] = value;
                    out.stored[row * k / 2 + i * chunk / 2 + j * run + e] = value;
                }
            }
            // From the figures "Sparse MMA metadata layout": for floats each lane has 16 bits for a
            // row and above them 16 for the row eight further down; for integers 32 bits for one of
            // the two.
            let (holders, half) = (chunks / 4, row / 8);
            let (part, bit) = match c == Ty::S32 {
                true => (i / 8 * 2 + half, i % 8 * 4),
                false => (i / 4, half * 16 + i % 4 * 4),
            };
            out.metadata[row % 8 * 4 + selector * holders + part] |= nibble << bit;
        }
        // The words of other lanes are ignored.
        for (lane, word) in out.metadata.iter_mut().enumerate() {
            if lane % 4 / (4 / case.selectors) != selector {
                *word = 0x5a5a_1234;
            }
        }
        out
    }
}

/// Draws the places kept of a piece, ascending, and their metadata: two of four; for tf32 one of
/// two.
fn kept(places: usize, random: &mut impl FnMut() -> f64) -> (Vec<usize>, u32) {
    let first = (random() * (places - 1) as f64) as usize;
    if places == 2 {
        let one = (random() * 2.0) as usize;
        return (vec![one], [0b0100, 0b1110][one]);
    }
    let second = first + 1 + (random() * (places - 1 - first) as f64) as usize;
    (vec![first, second], (first | second << 2) as u32)
}

fn place_c(lane: usize, i: usize) -> [usize; 2] {
    [lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1)]
}

/// Returns the places of a's kept elements and of b's, by the length of a's type in bits.
fn places(bits: usize) -> [Layout; 2] {
    match bits {
        32 => [
            |l, i| [l / 4 + i % 2 * 8, l % 4 + i / 2 * 4],
            |l, i| [l % 4 + i * 4, l / 4],
        ],
        16 => [
            |l, i| [l / 4 + i / 2 % 2 * 8, l % 4 * 2 + i % 2 + i / 4 * 8],
            |l, i| [l % 4 * 2 + i % 2 + i / 2 * 8, l / 4],
        ],
        8 => [
            |l, i| [l / 4 + i / 4 % 2 * 8, l % 4 * 4 + i % 4 + i / 8 * 16],
            |l, i| [l % 4 * 4 + i % 4 + i / 4 * 16, l / 4],
        ],
        _ => [
            |l, i| [l / 4 + i / 8 % 2 * 8, l % 4 * 8 + i % 8 + i / 16 * 32],
            |l, i| [l % 4 * 8 + i % 8 + i / 8 * 32, l / 4],
        ],
    }
}

/// Runs the instruction; returns the words of the result.
fn execute(case: &Case, selector: usize, inputs: &[Vec<[u64; 32]>]) -> Vec<u64> {
    let mut body = String::new();
    let mut at = 0;
    let mut lists = Vec::new();
    for (name, count) in ["a", "b", "c", "e"]
        .into_iter()
        .zip(inputs.iter().map(Vec::len))
    {
        body += &format!(".reg .b32 %{name}<{count}>;\n");
        for r in 0..count {
            body += &format!("ld.global.b32 %{name}{r}, [%rd2+{}];\n", at * 256);
            at += 1;
        }
        let all: Vec<String> = (0..count).map(|r| format!("%{name}{r}")).collect();
        lists.push(format!("{{{}}}", all.join(",")));
    }
    body += &format!(
        "mma.sp.sync.aligned.{} {}, {}, {}, {}, %e0, {selector};\n",
        case.opcode, lists[2], lists[0], lists[1], lists[2]
    );
    let results = inputs[2].len();
    for r in 0..results {
        body += &format!("st.global.b32 [%rd3+{}], %c{r};\n", r * 256);
    }
    let device = Device::new(&kernel(&body));
    let words: Vec<u64> = inputs.iter().flatten().flatten().copied().collect();
    let (input, output) = (device.upload(&words), device.alloc(results * 256));
    device.run("k", 1, 32, &[Arg::Ptr(input), Arg::Ptr(output)]);
    device.download::<u64>(output, results * 32)
}

fn check(case: &Case, selector: usize) {
    let k = case.k;
    let [a, b, c] = case.types;
    let mut random = noise((k * 10 + selector) as u64);
    let x = Sparse::new(case, selector, &mut random);
    let y: Vec<f64> = (0..k * N).map(|_| b.value(&mut random)).collect();
    let z: Vec<f64> = (0..M * N)
        .map(|_| if c == F16 { a } else { c }.value(&mut random))
        .collect();
    let registers = |elements: usize, ty: Ty| elements * ty.bits() / 32 / 32;
    let [place_a, place_b] = places(a.bits());
    let of_a = registers(M * k / 2, a);
    let inputs = [
        pack(&|r, j| x.stored[r * k / 2 + j], a, of_a, place_a),
        pack(&|r, j| y[r * N + j], b, registers(k * N, b), place_b),
        pack(&|r, j| z[r * N + j], c, registers(M * N, c), place_c),
        vec![x.metadata.map(u64::from)],
    ];
    let out = execute(case, selector, &inputs);
    let per = 32 / c.bits();
    for lane in 0..32 {
        for e in 0..inputs[2].len() * per {
            let [r, j] = place_c(lane, e);
            let product: f64 = (0..k).map(|l| x.whole[r * k + l] * y[l * N + j]).sum();
            let bits = out[e / per * 32 + lane] >> (e % per * c.bits());
            let got = c.decode(bits & (u64::MAX >> (64 - c.bits())));
            assert_eq!(
                got,
                product + z[r * N + j],
                "{} with selector {selector}: row {r}, column {j}",
                case.opcode
            );
        }
    }
}

#[test]
fn what_is_not_of_sm_80_is_refused() {
    for (opcode, operands) in [
        (
            "mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32",
            "0",
        ),
        ("mma.sp.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "0"),
        ("mma.sp.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32", "0"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "4"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "2"),
    ] {
        let text = kernel(&format!(
            ".reg .b32 %r<8>;\n{opcode} {{%r0,%r1,%r2,%r3}}, {{%r0,%r1}}, {{%r0,%r1}}, {{%r0,%r1,%r2,%r3}}, %r4, {operands};\n"
        ));
        let error = outboard_ptx::lower::check(&text).unwrap_err().to_string();
        assert!(
            error.contains("mma.sp") || error.contains("selector"),
            "{opcode}: {error}"
        );
    }
}
