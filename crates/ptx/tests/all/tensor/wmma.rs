//! `wmma`, `ldmatrix`, `movmatrix`: matrices between memory and registers.

use super::forms::{F16, F32, S4, S8, Ty, U4, U8, kernel};
use crate::common::{Arg, Device, noise};

#[test]
fn wmma_from_memory_to_memory() {
    let f = |a: Ty, c: Ty, d: Ty, names: [&'static str; 4]| (a, c, d, names);
    let shapes = [
        ([16, 16, 16], "m16n16k16"),
        ([8, 32, 16], "m8n32k16"),
        ([32, 8, 16], "m32n8k16"),
    ];
    for (shape, name) in shapes {
        for (ty, c, d, [types, load, c_name, d_name]) in [
            f(F16, F32, F32, ["f32.f32", "f16", "f32", "f32"]),
            f(F16, F16, F16, ["f16.f16", "f16", "f16", "f16"]),
            f(F16, F16, F32, ["f32.f16", "f16", "f16", "f32"]),
            f(
                Ty::Bf16,
                F32,
                F32,
                ["f32.bf16.bf16.f32", "bf16", "f32", "f32"],
            ),
            f(S8, Ty::S32, Ty::S32, ["s32.s8.s8.s32", "s8", "s32", "s32"]),
            f(
                U8,
                Ty::S32,
                Ty::S32,
                ["s32.u8.u8.s32.satfinite", "u8", "s32", "s32"],
            ),
        ] {
            wmma(
                name,
                shape,
                [ty, c, d],
                [types, load, c_name, d_name],
                &[
                    ("row", "col"),
                    ("col", "row"),
                    ("row", "row"),
                    ("col", "col"),
                ],
            );
        }
    }
    let both = &[("row", "col"), ("col", "row")];
    wmma(
        "m16n16k8",
        [16, 16, 8],
        [Ty::Tf32, F32, F32],
        ["f32.tf32.tf32.f32", "tf32", "f32", "f32"],
        both,
    );
    wmma(
        "m8n8k4",
        [8, 8, 4],
        [Ty::F64, Ty::F64, Ty::F64],
        ["f64.f64.f64.f64", "f64", "f64", "f64"],
        both,
    );
    for (ty, name) in [(S4, "s4"), (U4, "u4")] {
        let types = format!("s32.{name}.{name}.s32").leak();
        wmma(
            "m8n8k32",
            [8, 8, 32],
            [ty, Ty::S32, Ty::S32],
            [types, name, "s32", "s32"],
            &[("row", "col")],
        );
    }
}

/// A matrix in memory: by rows or by columns, with a padded leading dimension.
struct Stored<'s> {
    layout: &'s str,
    ty: Ty,
    rows: usize,
    columns: usize,
    /// Distance between rows or columns in elements.
    stride: usize,
}

impl<'s> Stored<'s> {
    fn new(layout: &'s str, ty: Ty, [rows, columns]: [usize; 2], extra: usize) -> Self {
        let line = if layout == "row" { columns } else { rows };
        Stored {
            layout,
            ty,
            rows,
            columns,
            stride: extra + line,
        }
    }

    /// Returns the place of an element in bits.
    fn bit(&self, r: usize, j: usize) -> usize {
        let at = match self.layout {
            "row" => r * self.stride + j,
            _ => j * self.stride + r,
        };
        at * self.ty.bits()
    }

    /// Returns the memory of a matrix with these values, row by row.
    fn image(&self, values: &[f64]) -> Vec<u8> {
        let lines = if self.layout == "row" {
            self.rows
        } else {
            self.columns
        };
        let mut bits = vec![0u8; lines * self.stride * self.ty.bits().max(8) / 8 + 64];
        for r in 0..self.rows {
            for j in 0..self.columns {
                let at = self.bit(r, j);
                let value = self.ty.encode(values[r * self.columns + j]) << (at % 8);
                for byte in 0..self.ty.bits().div_ceil(8) {
                    bits[at / 8 + byte] |= (value >> (8 * byte)) as u8;
                }
            }
        }
        bits
    }

    /// Reads an element of at least a byte.
    fn read(&self, image: &[u8], r: usize, j: usize) -> f64 {
        let at = self.bit(r, j) / 8;
        let bytes = 0..self.ty.bits() / 8;
        self.ty
            .decode(bytes.fold(0, |v, b| v | u64::from(image[at + b]) << (8 * b)))
    }
}

/// Computes d = a * b + c with all four in global memory, sums by rows and by columns, with padded
/// leading dimensions.
fn wmma(
    name: &str,
    shape: [usize; 3],
    [ty, c_ty, d_ty]: [Ty; 3],
    [types, load, c_name, d_name]: [&str; 4],
    layouts: &[(&str, &str)],
) {
    let [m, n, k] = shape;
    let (types, saturate) = types
        .strip_suffix(".satfinite")
        .map_or((types, ""), |t| (t, ".satfinite"));
    for (&(a_layout, b_layout), sums) in layouts.iter().flat_map(|l| [(l, "row"), (l, "col")]) {
        let mut random = noise((m * 7 + n * 3 + k) as u64);
        let mut values = |count: usize, ty: Ty| -> Vec<f64> {
            (0..count).map(|_| ty.value(&mut random)).collect()
        };
        let (x, y) = (values(m * k, ty), values(k * n, ty));
        let z = values(m * n, if c_ty == F16 { ty } else { c_ty });
        // Strides in elements, and in whole words for elements shorter than a byte.
        let extra = if ty.bits() < 8 { 32 } else { 16 };
        let a = Stored::new(a_layout, ty, [m, k], extra);
        let b = Stored::new(b_layout, ty, [k, n], extra);
        let c = Stored::new(sums, c_ty, [m, n], extra);
        let d = Stored::new(sums, d_ty, [m, n], extra);
        let (sa, sb, sc) = (a.stride, b.stride, c.stride);
        let class = if ty == Ty::F64 { "f64" } else { "b32" };
        let counts = fragment_registers(load, shape, c_ty, d_ty);
        let [la, lb, lc, ld] = std::array::from_fn(|i| list(["a", "b", "c", "d"][i], counts[i]));
        let body = format!(
            ".reg .{class} %a<8>; .reg .{class} %b<8>; .reg .{class} %c<8>; .reg .{class} %d<8>;\n\
             ld.global.u64 %rd5, [%rd0+8]; ld.global.u64 %rd6, [%rd0+16]; ld.global.u64 %rd0, [%rd0];\n\
             mov.u32 %t1, {sb};\n\
             wmma.load.a.sync.aligned.{a_layout}.{name}.global.{load} {la}, [%rd0], {sa};\n\
             wmma.load.b.sync.aligned.{b_layout}.{name}.{load} {lb}, [%rd5], %t1;\n\
             wmma.load.c.sync.aligned.{sums}.{name}.global.{c_name} {lc}, [%rd6], {sc};\n\
             wmma.mma.sync.aligned.{a_layout}.{b_layout}.{name}.{types}{saturate} {ld}, {la}, {lb}, {lc};\n\
             wmma.store.d.sync.aligned.{sums}.{name}.global.{d_name} [%rd1], {ld}, {sc};\n"
        );
        let out = execute(
            &body,
            [a.image(&x), b.image(&y), c.image(&z)],
            (m.max(n) * sc) * d_ty.bits() / 8,
        );
        for (r, j) in (0..m).flat_map(|r| (0..n).map(move |j| (r, j))) {
            let sum: f64 = (0..k).map(|l| x[r * k + l] * y[l * n + j]).sum();
            assert_eq!(
                d.read(&out, r, j),
                sum + z[r * n + j],
                "{name} {types} {a_layout} {b_layout} {sums} {r} {j}"
            );
        }
    }
}

/// Writes a list of registers `{%a0,%a1}`.
fn list(name: &str, count: usize) -> String {
    let all: Vec<_> = (0..count).map(|r| format!("%{name}{r}")).collect();
    format!("{{{}}}", all.join(","))
}

/// Runs a kernel that finds the places of its matrices in a table; returns the bytes it wrote.
fn execute(body: &str, matrices: [Vec<u8>; 3], bytes: usize) -> Vec<u8> {
    let device = Device::new(&kernel(body));
    let table = device.upload(&matrices.map(|image| device.upload(&image)));
    let out = device.alloc(bytes);
    device.run("k", 1, 32, &[Arg::Ptr(table), Arg::Ptr(out)]);
    device.download::<u8>(out, bytes)
}

/// Returns the register counts from the manual's tables of `wmma` fragments.
fn fragment_registers(ty: &str, shape: [usize; 3], c: Ty, d: Ty) -> [usize; 4] {
    let (a, b) = match (ty, shape) {
        ("f16", _) => (8, 8),
        ("bf16", [16, 16, _]) | ("tf32", _) => (4, 4),
        ("bf16", [8, 32, _]) => (2, 8),
        ("bf16", _) => (8, 2),
        ("s8" | "u8", [16, 16, _]) => (2, 2),
        ("s8" | "u8", [8, 32, _]) => (1, 4),
        ("s8" | "u8", _) => (4, 1),
        _ => (1, 1),
    };
    let sums = |ty: Ty| match (ty, shape) {
        (_, [8, 8, _]) => 2,
        (Ty::F16, _) => 4,
        _ => 8,
    };
    [a, b, sums(c), sums(d)]
}

#[test]
fn matrices_of_shared_memory() {
    for (count, list) in [(1, "{%t2}"), (2, "{%t2,%t3}"), (4, "{%t2,%t3,%t4,%t5}")] {
        for trans in ["", ".trans"] {
            let stores: String = (0..count)
                .map(|r| format!("st.global.u32 [%rd3+{}], %t{};\n", r * 256, r + 2))
                .collect();
            // Row j of matrix i lies at 16 * (8 * i + j), written by lane 8 * i + j.
            let body = format!(
                ".shared .align 16 .b8 tile[512];\n.reg .b64 %v<2>; .reg .b32 %p;\n\
                 shl.b32 %t1, %t0, 4; mul.wide.u32 %rd5, %t0, 16; add.s64 %rd5, %rd0, %rd5;\n\
                 mov.u32 %p, tile; add.u32 %t1, %t1, %p;\n\
                 ld.global.v2.u64 {{%v0, %v1}}, [%rd5]; st.shared.v2.u64 [%t1], {{%v0, %v1}};\n\
                 bar.warp.sync -1;\n\
                 ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, [%t1];\n{stores}"
            );
            let device = Device::new(&kernel(&body));
            let data: Vec<u16> = (0..256).collect();
            let (pi, po) = (device.upload(&data), device.alloc(count * 256));
            device.run("k", 1, 32, &[Arg::Ptr(pi), Arg::Ptr(po)]);
            let out = device.download::<u64>(po, count * 32);
            for (at, &word) in out.iter().enumerate() {
                let (matrix, lane) = (at / 32, at % 32);
                let element = |r: usize, c: usize| {
                    (matrix * 64
                        + if trans.is_empty() {
                            r * 8 + c
                        } else {
                            c * 8 + r
                        }) as u32
                };
                let (g, t) = (lane / 4, lane % 4 * 2);
                assert_eq!(
                    word as u32,
                    element(g, t) | element(g, t + 1) << 16,
                    "x{count}{trans} lane {lane}"
                );
            }
        }
    }
}

#[test]
fn a_matrix_transposed_in_registers() {
    let device = Device::new(&kernel(
        "ld.global.u32 %t1, [%rd2]; movmatrix.sync.aligned.m8n8.trans.b16 %t1, %t1; st.global.u32 [%rd3], %t1;\n",
    ));
    let data: Vec<u64> = (0..32u64)
        .map(|l| (l / 4 * 8 + l % 4 * 2) * 0x1_0001 + 0x1_0000)
        .collect();
    let (pi, po) = (device.upload(&data), device.alloc(256));
    device.run("k", 1, 32, &[Arg::Ptr(pi), Arg::Ptr(po)]);
    let expected: Vec<u64> = (0..32u64)
        .map(|l| {
            let (g, t) = (l / 4, l % 4 * 2);
            (t * 8 + g) | (((t + 1) * 8 + g) << 16)
        })
        .collect();
    assert_eq!(device.download::<u64>(po, 32), expected);
}
