//! Inputs of forms: edge values of each type, crossed, then random pairs of them, then random bits.
//! Always the same.

use crate::form::{Form, PtxType};

/// Threads of a block; cases come in whole blocks.
pub const BLOCK: usize = 128;

/// A random generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Hashes names into seeds and keys (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    let step = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the values of each input of a form: `columns[input][case]`, in the low bits.
pub fn columns(form: &Form) -> Vec<Vec<u64>> {
    let inputs = form.inputs();
    let mut random = Random::new(hash(form.declared.as_bytes()));
    let lists: Vec<Vec<u64>> = inputs.iter().map(|&(k, class)| edges(k, class)).collect();
    // Number of the first edge values of each input that are crossed.
    let (crossed, total) = match inputs.len() {
        0 => (1, BLOCK),
        1 => (usize::MAX, 2 * BLOCK),
        2 => (18, 4 * BLOCK),
        3 => (7, 4 * BLOCK),
        _ => (1, 2 * BLOCK),
    };
    let lens: Vec<usize> = lists.iter().map(|l| l.len().min(crossed)).collect();
    let crossings: usize = lens.iter().product();
    let by_chance = (total.saturating_sub(crossings)) / 2;
    let mut columns = vec![Vec::with_capacity(total); inputs.len()];
    for case in 0..total {
        let mut index = case;
        for (i, &(kind, class)) in inputs.iter().enumerate() {
            let value = if case < crossings {
                let at = index % lens[i];
                index /= lens[i];
                lists[i][at]
            } else if case < crossings + by_chance {
                random.pick(&lists[i])
            } else {
                any(kind, class, &mut random)
            };
            columns[i].push(value);
        }
    }
    columns
}

/// Returns edge values, the most informative first.
fn edges(kind: PtxType, class: &str) -> Vec<u64> {
    match class {
        "" => edges_of_type(kind),
        "shift" => SHIFTS.map(|v| v & mask(kind)).to_vec(),
        "byte" => BYTES.to_vec(),
        "nonzero" => edges(kind, "").into_iter().filter(|&v| v != 0).collect(),
        // Integers whose products and sums are exact in every format.
        "small" => [0i64, 1, -1, 2, -2, 3, -3, 4]
            .map(|v| whole(kind, v))
            .to_vec(),
        "unit" => [0.0, 1.0, -1.0, 0.5, -0.5].map(|v| real(kind, v)).to_vec(),
        // Metadata of a sparse matrix: which two of four, or which one of two, are not 0.
        "sparse" => nibbles(&[0x4, 0x8, 0xc, 0x9, 0xd, 0xe]),
        "sparse32" => nibbles(&[0x4, 0xe]),
        // A lane, and numbers past the last.
        "lane" => (0..=33).chain([63, 64, 0xff, 0xffff_ffff]).collect(),
        // shfl: the mask of segments in bits 8 to 12, the limit in bits 0 to 4.
        "clamp" => vec![
            0x1f,
            0,
            0x181f,
            0x1c1f,
            0x1e03,
            0x1f00,
            0x0f,
            0x1818,
            0xffff_ffff,
        ],
        // Few values, so that lanes agree.
        "few" => vec![0, 1, 2, mask(kind)],
        other => class_of(other),
    }
}

/// Returns the edge values of a type, for an input without a class of its own.
fn edges_of_type(kind: PtxType) -> Vec<u64> {
    match kind {
        PtxType::Pred => vec![0, 1],
        PtxType::Int(_, bits) => integers(bits),
        PtxType::F16 => halves(&F16),
        PtxType::Bf16 => halves(&BF16),
        PtxType::F16x2 => pairs(&halves(&F16)),
        PtxType::Bf16x2 => pairs(&halves(&BF16)),
        PtxType::F32 | PtxType::Tf32 => F32.iter().map(|&v| u64::from(v)).collect(),
        PtxType::F64 => F64.to_vec(),
    }
}

/// Shift counts, and positions and lengths of bit fields.
const SHIFTS: [u64; 32] = [
    0,
    1,
    31,
    32,
    33,
    63,
    64,
    65,
    255,
    256,
    15,
    16,
    17,
    7,
    8,
    0xffff_ffff,
    0x8000_0000,
    24,
    2,
    3,
    4,
    5,
    30,
    47,
    48,
    62,
    127,
    128,
    0xffff,
    0x1_0000,
    0x101,
    0x120,
];

/// Counts below 256.
const BYTES: [u64; 25] = [
    0, 1, 31, 32, 33, 63, 64, 65, 255, 15, 16, 17, 7, 8, 24, 2, 3, 4, 5, 30, 47, 48, 62, 127, 128,
];

fn nibbles(of: &[u64]) -> Vec<u64> {
    let word = |i: usize| (0..8).fold(0, |word, at| word << 4 | of[(i * (at + 2) + at) % of.len()]);
    (0..16).map(word).collect()
}

/// The class `@N`: numbers below N.
fn class_of(class: &str) -> Vec<u64> {
    (0..class.parse().unwrap_or(1)).collect()
}

fn mask(kind: PtxType) -> u64 {
    match kind.bytes() {
        8 => u64::MAX,
        bytes => (1 << (bytes * 8)) - 1,
    }
}

fn any(kind: PtxType, class: &str, random: &mut Random) -> u64 {
    match class {
        "" | "nonzero" => {}
        "unit" => return real(kind, random.below(4097) as f64 / 2048.0 - 1.0),
        _ => return random.pick(&edges(kind, class)),
    }
    let bits = random.bits();
    // Half of the floats are within a few powers of two of each other, so that sums cancel and
    // round.
    let moderate = |exponent_bits: u32, mantissa_bits: u32, bits: u64| {
        let bias = (1u64 << (exponent_bits - 1)) - 1;
        let exponent = bias - 6 + (bits >> 52) % 13;
        (bits >> 63) << (exponent_bits + mantissa_bits)
            | exponent << mantissa_bits
            | bits & ((1 << mantissa_bits) - 1)
    };
    let near = random.below(2) == 0;
    let value = match kind {
        _ if !near => bits,
        PtxType::F16 => moderate(5, 10, bits),
        PtxType::Bf16 => moderate(8, 7, bits),
        PtxType::F16x2 => moderate(5, 10, bits) | moderate(5, 10, random.bits()) << 16,
        PtxType::Bf16x2 => moderate(8, 7, bits) | moderate(8, 7, random.bits()) << 16,
        PtxType::F32 | PtxType::Tf32 => moderate(8, 23, bits),
        PtxType::F64 => moderate(11, 52, bits),
        // Integers of any length.
        PtxType::Int(..) | PtxType::Pred => bits >> random.below(kind.bytes() * 8),
    };
    let value = if kind == PtxType::Pred {
        value & 1
    } else {
        value & mask(kind)
    };
    if class == "nonzero" {
        value.max(1)
    } else {
        value
    }
}

/// Returns the edge values of an integer type: those of 0, of its signs, and of its halves.
fn integers(bits: u32) -> Vec<u64> {
    let (all, top) = (u64::MAX >> (64 - bits), 1u64 << (bits - 1));
    let half = 1u64 << (bits / 2);
    let mut out = vec![
        0,
        1,
        all,
        top,
        top - 1,
        2,
        all - 1,
        top + 1,
        half - 1,
        half,
        3,
        top | half,
        7,
        all / 3,
        all / 3 * 2,
        half + 1,
        top - 2,
        all - half,
        5,
        10,
        100,
        127,
        128,
        129,
        255,
        all - 127,
        all - 128,
        all - 2,
        half / 2,
        half / 2 - 1,
        all / 5,
        all / 7,
        top >> 1,
        (top >> 1) - 1,
        (top >> 1) + 1,
        top + half,
        half * 3,
        all - 9,
    ];
    for v in &mut out {
        *v &= all;
    }
    match bits {
        64 => out.extend(MORE_OF_64_BITS),
        32 => out.extend(MORE_OF_32_BITS),
        _ => {}
    }
    out
}

/// Integers whose 32-bit halves, or whose conversion to a float, are edge values.
const MORE_OF_64_BITS: [u64; 9] = [
    0xffff_ffff,
    0x8000_0000,
    0x7fff_ffff,
    0x1_0000_0001,
    0xffff_ffff_8000_0000,
    (1 << 53) + 1,
    (1 << 53) - 1,
    0x7fff_ff80_0000_0000,
    (1 << 24) + 1,
];

/// Integers whose conversion to a float, or to a half, rounds.
const MORE_OF_32_BITS: [u64; 8] = [
    (1 << 24) + 1,
    (1 << 24) - 1,
    0x7fff_ff80,
    0x7fff_ffc0,
    0xff80,
    0x1_ff00,
    65504,
    65520,
];

struct Half {
    /// All ones in the exponent field.
    inf: u64,
    /// The top bit of the mantissa.
    quiet: u64,
    one: u64,
    /// One in the exponent field.
    step: u64,
}

const F16: Half = Half {
    inf: 0x7c00,
    quiet: 0x200,
    one: 0x3c00,
    step: 0x400,
};
const BF16: Half = Half {
    inf: 0x7f80,
    quiet: 0x40,
    one: 0x3f80,
    step: 0x80,
};

fn halves(f: &Half) -> Vec<u64> {
    let (sign, nan, max) = (0x8000, f.inf | f.quiet, f.inf - 1);
    let mut out = vec![
        0,
        f.one,
        nan,
        sign | f.one,
        f.inf,
        sign,
        1,
        sign | f.inf,
        max,
        f.step,
        sign | 1,
        f.step - 1,
        sign | max,
        f.one + 1,
        f.inf | 1,
        f.one + f.step,
        f.one - 1,
        sign | f.step,
    ];
    let more = [
        sign | nan,
        nan | 5,
        0x7fff,
        0xffff,
        sign | f.inf | 1,
        f.one - f.step,
        f.one - 2,
        f.step + 1,
        2,
        3,
        f.step / 2,
        f.one + f.step / 2,
        f.one + f.step + f.step / 4,
        f.one + 3 * f.step,
        f.one + 7 * f.step,
        f.one + 10 * f.step,
        max - 1,
        max - f.step,
        f.one - 10 * f.step,
        f.one - 11 * f.step,
        f.one - 14 * f.step,
        sign | (f.one - f.step),
        sign | (f.one + f.step / 2),
        sign | (f.one + 3 * f.step),
        sign | (f.step - 1),
        sign | (f.one + 1),
    ];
    out.extend(more);
    out
}

/// Combines halves so that each meets every other at times: the second list advances differently.
fn pairs(of: &[u64]) -> Vec<u64> {
    (0..of.len() * 2)
        .map(|i| of[i % of.len()] | of[(i * 7 + i / of.len() + 3) % of.len()] << 16)
        .collect()
}

const F32: [u32; 72] = [
    0,
    0x3f80_0000,
    0x7fc0_0000,
    0xbf80_0000,
    0x7f80_0000,
    0x8000_0000,
    1,
    0xff80_0000,
    0x7f7f_ffff,
    0x0080_0000,
    0x8000_0001,
    0x007f_ffff,
    0xff7f_ffff,
    0x3f80_0001,
    0x7f80_0001,
    0x4000_0000,
    0x3f7f_ffff,
    0x8080_0000,
    // NaNs with payloads; 1 and less; limits of halves and integers; turning points of exp2 and
    // log2.
    0xffc0_0000,
    0x7fc1_2345,
    0x7fff_ffff,
    0xffff_ffff,
    0xff8a_bcde,
    0x3f00_0000,
    0xbf80_0001,
    0x807f_ffff,
    0x0080_0001,
    0x0040_0000,
    2,
    3,
    0x3fc0_0000,
    0x4020_0000,
    0xbfc0_0000,
    0xbf00_0000,
    0xc020_0000,
    0x4040_0000,
    0x3eff_ffff,
    0x3f00_0001,
    0x4b00_0000,
    0x4b00_0001,
    0x4b7f_ffff,
    0x4b80_0000,
    0x4aff_ffff,
    0x4f00_0000,
    0x4eff_ffff,
    0xcf00_0000,
    0xcf00_0001,
    0x4f80_0000,
    0x4f7f_ffff,
    0x5f00_0000,
    0x5eff_ffff,
    0xdf00_0000,
    0x5f80_0000,
    0x5f7f_ffff,
    0x477f_e000,
    0x477f_efff,
    0x477f_f000,
    0x3880_0000,
    0x387f_c000,
    0x3300_0000,
    0x3300_0001,
    0x3380_0000,
    0x7f7f_8000,
    0x7f7f_7fff,
    0x4300_0000,
    0xc2fc_0000,
    0xc315_0000,
    0xc316_0000,
    0x4049_0fdb,
    0x3fc9_0fdb,
    0x42b1_7218,
    0x437f_8000,
];

const F64: [u64; 56] = [
    0,
    0x3ff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    1 << 63,
    1,
    0xfff0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x8000_0000_0000_0001,
    0x000f_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x3ff0_0000_0000_0001,
    0x7ff0_0000_0000_0001,
    0x4000_0000_0000_0000,
    0x3fef_ffff_ffff_ffff,
    0x8010_0000_0000_0000,
    0xfff8_0000_0000_0000,
    0x7ff8_1234_5678_9abc,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
    0xfff4_0000_0000_1234,
    0x3fe0_0000_0000_0000,
    0x000f_0000_0000_0000,
    2,
    3,
    0x3ff8_0000_0000_0000,
    0x4004_0000_0000_0000,
    0xbff8_0000_0000_0000,
    0xbfe0_0000_0000_0000,
    0xc004_0000_0000_0000,
    0x4008_0000_0000_0000,
    0x3fdf_ffff_ffff_ffff,
    0x4330_0000_0000_0000,
    0x4330_0000_0000_0001,
    0x4340_0000_0000_0000,
    0x41e0_0000_0000_0000,
    0x41df_ffff_ffc0_0000,
    0xc1e0_0000_0000_0000,
    0xc1e0_0000_0020_0000,
    0x41f0_0000_0000_0000,
    0x43e0_0000_0000_0000,
    0x43df_ffff_ffff_ffff,
    0xc3e0_0000_0000_0000,
    0x43f0_0000_0000_0000,
    0x43ef_ffff_ffff_ffff,
    // Limits of f32: its largest, values that round beyond it, its smallest, half of that.
    0x47ef_ffff_e000_0000,
    0x47ef_ffff_f000_0000,
    0x47ef_ffff_efff_ffff,
    0x3810_0000_0000_0000,
    0x380f_ffff_e000_0000,
    0x36a0_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x3690_0000_0000_0001,
    0x40ef_fdff_ffff_ffff,
];

fn whole(kind: PtxType, value: i64) -> u64 {
    match kind {
        PtxType::Int(..) | PtxType::Pred => value as u64 & mask(kind),
        _ => real(kind, value as f64),
    }
}

/// Returns a value that the format holds exactly, or rounded towards zero; in both halves of a
/// pair.
fn real(kind: PtxType, value: f64) -> u64 {
    let single = u64::from((value as f32).to_bits());
    let half = || {
        if value == 0.0 {
            return 0;
        }
        let exponent = (single >> 23 & 0xff) as i64 - 127 + 15;
        if exponent <= 0 {
            return single >> 31 << 15;
        }
        single >> 31 << 15 | (exponent as u64) << 10 | (single >> 13 & 0x3ff)
    };
    match kind {
        PtxType::F64 => value.to_bits(),
        PtxType::F16 => half(),
        PtxType::F16x2 => half() | half() << 16,
        PtxType::Bf16 => single >> 16,
        PtxType::Bf16x2 => single >> 16 | single >> 16 << 16,
        PtxType::Tf32 => single & !0x1fff,
        _ => single,
    }
}
