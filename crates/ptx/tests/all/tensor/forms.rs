//! Element types, fragments and one-instruction kernels for the tests beside this file.

use crate::common::{Arg, Device, noise};

/// Row and column for a lane and an element.
pub type Layout = fn(usize, usize) -> [usize; 2];

/// Element types as (bits, signed or float name).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ty {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S32,
    Int { bits: usize, signed: bool },
    Bit,
}

impl Ty {
    pub fn bits(self) -> usize {
        match self {
            Ty::F16 | Ty::Bf16 => 16,
            Ty::Tf32 | Ty::F32 | Ty::S32 => 32,
            Ty::F64 => 64,
            Ty::Int { bits, .. } => bits,
            Ty::Bit => 1,
        }
    }

    /// Returns a small number that the type holds exactly.
    pub fn value(self, random: &mut impl FnMut() -> f64) -> f64 {
        let r = random();
        match self {
            Ty::F16 | Ty::Bf16 | Ty::Tf32 => (r * 17.0).floor() / 8.0 - 1.0,
            Ty::F32 | Ty::F64 => (r * 65.0).floor() / 4.0 - 8.0,
            Ty::S32 => (r * 20_000.0).floor() - 10_000.0,
            Ty::Int { bits, signed } => {
                let span = 2f64.powi(bits as i32);
                (r * span).floor() - if signed { span / 2.0 } else { 0.0 }
            }
            Ty::Bit => (r * 2.0).floor(),
        }
    }

    pub fn encode(self, v: f64) -> u64 {
        match self {
            // Multiples of 1/8 below 16, encoded by hand because the crate's own conversions are
            // under test.
            Ty::F16 => half_bits(v, 10, 15),
            Ty::Bf16 => half_bits(v, 7, 127),
            // The lower bits of a tf32 register are ignored.
            Ty::Tf32 => u64::from((v as f32).to_bits() | 0x1fff),
            Ty::F32 => u64::from((v as f32).to_bits()),
            Ty::F64 => v.to_bits(),
            Ty::S32 => u64::from(v as i32 as u32),
            Ty::Int { bits, .. } => v as i64 as u64 & ((1 << bits) - 1),
            Ty::Bit => v as u64,
        }
    }

    pub fn decode(self, bits: u64) -> f64 {
        match self {
            Ty::F16 => {
                let (e, m) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f64);
                let magnitude = if e == 0 {
                    m * 2f64.powi(-24)
                } else {
                    (1024.0 + m) * 2f64.powi(e - 25)
                };
                if bits >> 15 & 1 != 0 {
                    -magnitude
                } else {
                    magnitude
                }
            }
            Ty::F32 => f64::from(f32::from_bits(bits as u32)),
            Ty::F64 => f64::from_bits(bits),
            Ty::S32 => f64::from(bits as u32 as i32),
            _ => panic!("not a type of sums"),
        }
    }
}

pub fn half_bits(v: f64, mantissa: i32, bias: i32) -> u64 {
    if v == 0.0 {
        return 0;
    }
    let sign = u64::from(v < 0.0) << 15;
    let e = v.abs().log2().floor() as i32;
    let fraction = (v.abs() / 2f64.powi(e) - 1.0) * 2f64.powi(mantissa);
    assert_eq!(fraction.fract(), 0.0, "{v} is not exact");
    sign | ((e + bias) as u64) << mantissa | fraction as u64
}

/// Distributes a matrix over the registers of 32 lanes: `registers[r][lane]`, 64 bits each.
pub fn pack(
    matrix: &dyn Fn(usize, usize) -> f64,
    ty: Ty,
    count: usize,
    place: Layout,
) -> Vec<[u64; 32]> {
    let per = (32 / ty.bits()).max(1);
    let mut out = vec![[0; 32]; count];
    for lane in 0..32 {
        for e in 0..count * per {
            let [r, c] = place(lane, e);
            out[e / per][lane] |= ty.encode(matrix(r, c)) << (e % per * ty.bits());
        }
    }
    out
}

pub struct Form {
    pub opcode: &'static str,
    pub shape: [usize; 3],
    pub types: [Ty; 4],
    pub counts: [usize; 4],
    pub places: [Layout; 3],
}

/// Runs `opcode` on random matrices, and checks the result for equality.
pub fn check(form: &Form) {
    let [m, n, k] = form.shape;
    let [a, b, c, d] = form.types;
    let mut random = noise(m as u64 * 1000 + k as u64 + a.bits() as u64);
    let x: Vec<f64> = (0..m * k).map(|_| a.value(&mut random)).collect();
    let y: Vec<f64> = (0..k * n).map(|_| b.value(&mut random)).collect();
    let z: Vec<f64> = (0..m * n)
        .map(|_| {
            if c == Ty::F16 {
                a.value(&mut random)
            } else {
                c.value(&mut random)
            }
        })
        .collect();
    let inputs = [
        pack(&|r, j| x[r * k + j], a, form.counts[0], form.places[0]),
        pack(&|r, j| y[r * n + j], b, form.counts[1], form.places[1]),
        pack(&|r, j| z[r * n + j], c, form.counts[2], form.places[2]),
    ];
    let out = execute(form, &inputs);
    let mut seen = vec![false; m * n];
    let per = (32 / d.bits()).max(1);
    for lane in 0..32 {
        for e in 0..form.counts[3] * per {
            let [r, j] = form.places[2](lane, e);
            let product: f64 = (0..k)
                .map(|l| {
                    let (p, q) = (x[r * k + l], y[l * n + j]);
                    match a {
                        Ty::Bit if form.opcode.contains("and") => p * q,
                        Ty::Bit => f64::from(u8::from(p != q)),
                        _ => p * q,
                    }
                })
                .sum();
            let got = d
                .decode(out[e / per][lane] >> (e % per * d.bits()) & (u64::MAX >> (64 - d.bits())));
            assert_eq!(
                got,
                product + z[r * n + j],
                "{} row {r} column {j}",
                form.opcode
            );
            seen[r * n + j] = true;
        }
    }
    assert!(
        seen.iter().all(|&s| s),
        "{} leaves elements out",
        form.opcode
    );
}

/// Executes one instruction: a warp loads the registers, executes it, and stores the result.
pub fn execute(form: &Form, inputs: &[Vec<[u64; 32]>; 3]) -> Vec<[u64; 32]> {
    let names = ["a", "b", "c", "d"];
    let mut body = String::new();
    let mut at = 0;
    for (i, name) in names.iter().enumerate() {
        let wide = form.types[i] == Ty::F64;
        let class = if wide { "f64" } else { "b32" };
        body += &format!(".reg .{class} %{name}<{}>;\n", form.counts[i]);
        if i < 3 {
            for r in 0..form.counts[i] {
                let load = if wide { "f64" } else { "b32" };
                body += &format!("ld.global.{load} %{name}{r}, [%rd2+{}];\n", at * 256);
                at += 1;
            }
        }
    }
    let list = |i: usize| {
        let all: Vec<_> = (0..form.counts[i])
            .map(|r| format!("%{}{r}", names[i]))
            .collect();
        format!("{{{}}}", all.join(","))
    };
    body += &format!(
        "{} {}, {}, {}, {};\n",
        form.opcode,
        list(3),
        list(0),
        list(1),
        list(2)
    );
    for r in 0..form.counts[3] {
        let store = if form.types[3] == Ty::F64 {
            "f64"
        } else {
            "b32"
        };
        body += &format!("st.global.{store} [%rd3+{}], %d{r};\n", r * 256);
    }
    let device = Device::new(&kernel(&body));
    let words: Vec<u64> = inputs.iter().flatten().flatten().copied().collect();
    let (pi, po) = (device.upload(&words), device.alloc(form.counts[3] * 256));
    device.run("k", 1, 32, &[Arg::Ptr(pi), Arg::Ptr(po)]);
    let out = device.download::<u64>(po, form.counts[3] * 32);
    out.chunks_exact(32)
        .map(|row| row.try_into().unwrap())
        .collect()
}

/// Writes a kernel whose lanes have `%rd2 = in + 8 * lane`, `%rd3 = out + 8 * lane`, `%rd0 = in`,
/// `%rd1 = out`.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .b64 %rd<8>; .reg .b32 %t<8>;\n\
         ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out];\n\
         mov.u32 %t0, %laneid; mul.wide.u32 %rd4, %t0, 8;\n\
         add.s64 %rd2, %rd0, %rd4; add.s64 %rd3, %rd1, %rd4;\n{body}ret;\n}}\n"
    )
}
pub const F16: Ty = Ty::F16;
pub const F32: Ty = Ty::F32;
pub const S8: Ty = Ty::Int {
    bits: 8,
    signed: true,
};
pub const U8: Ty = Ty::Int {
    bits: 8,
    signed: false,
};
pub const S4: Ty = Ty::Int {
    bits: 4,
    signed: true,
};
pub const U4: Ty = Ty::Int {
    bits: 4,
    signed: false,
};
