//! Conversions of 8-bit floats, which exist since sm_89. Expected values follow by hand from the
//! definition of the formats (PTX ISA 5.2.3).

use crate::common::{Arg, Device};
use outboard_ptx::{Error, lower};

fn text(body: &str) -> String {
    format!(
        ".version 8.1\n.target sm_89\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n\
         .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .b16 %h<4>;\n\
         ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4;\n\
         add.u64 %rd0, %rd0, %rd2; add.u64 %rd1, %rd1, %rd2; ld.global.b32 %r1, [%rd0];\n{body}\nret;\n}}\n"
    )
}

/// Runs a body in which each thread has a word of `input` in `%r1`, and stores `%r2`.
fn words(body: &str, input: &[u32]) -> Vec<u32> {
    let device = Device::new(&text(&format!("{body} st.global.b32 [%rd1], %r2;")));
    let (from, out) = (device.upload(input), device.alloc(input.len() * 4));
    let threads = input.len() as u32;
    device.run("k", 1, threads, &[Arg::Ptr(from), Arg::Ptr(out)]);
    device.download(out, input.len())
}

/// For a format, values and their bytes.
const E4M3: [(f32, u32); 22] = [
    (1.0, 0x38),
    (-1.5, 0xbc),
    (0.0, 0),
    (-0.0, 0x80),
    (448.0, 0x7e),
    (449.0, 0x7e),
    (-500.0, 0xfe),
    (f32::INFINITY, 0x7e),
    (f32::NEG_INFINITY, 0xfe),
    (f32::NAN, 0x7f),
    // Subnormal: multiples of 2^-9. Ties go to even.
    (0.001953125, 1),
    (0.0009765625, 0),
    (0.000976563, 1),
    (0.0029296875, 2),
    (0.015625, 8),
    (17.0, 0x58),
    (19.0, 0x5a),
    (247.9, 0x77),
    (248.0, 0x78),
    (272.0, 0x78),
    (304.0, 0x7a),
    (-431.0, 0xfd),
];

const E5M2: [(f32, u32); 15] = [
    (1.0, 0x3c),
    (-1.5, 0xbe),
    (-0.0, 0x80),
    (57344.0, 0x7b),
    (61440.0, 0x7b),
    (-1e30, 0xfb),
    (f32::INFINITY, 0x7b),
    (f32::NAN, 0x7f),
    (1.525_878_9e-5, 1),
    (7.629_394_5e-6, 0),
    (-7.7e-6, 0x81),
    (1.125, 0x3c),
    (1.375, 0x3e),
    (6.103_515_6e-5, 4),
    (49152.0, 0x7a),
];

#[test]
fn singles_to_bytes() {
    for (format, table) in [("e4m3x2", &E4M3[..]), ("e5m2x2", &E5M2[..])] {
        let input: Vec<u32> = table.iter().map(|(value, _)| value.to_bits()).collect();
        // The first source is the high byte.
        let body = format!(
            "mov.b32 %f0, %r1; mov.f32 %f1, 0f40000000; cvt.rn.satfinite.{format}.f32 %h0, %f0, %f1; cvt.u32.u16 %r2, %h0;"
        );
        let two = 0x40;
        let expected: Vec<u32> = table.iter().map(|(_, byte)| byte << 8 | two).collect();
        assert_eq!(words(&body, &input), expected, "{format}");
        let body = body
            .replace("satfinite", "satfinite.relu")
            .replace("%f0, %f1;", "%f1, %f0;");
        let expected: Vec<u32> = table
            .iter()
            .map(|(_, byte)| two << 8 | if byte & 0x80 == 0 { *byte } else { 0 })
            .collect();
        assert_eq!(words(&body, &input), expected, "{format} relu");
    }
}

#[test]
fn halves_to_bytes() {
    // 448 and 1; 65504 and -2; a NaN and the smallest subnormal; 17 and 2^-9.
    let input = [0x5f00_3c00, 0x7bff_c000, 0x7e00_0001, 0x4c40_1800];
    let cvt = |form: &str| format!("cvt.rn.satfinite.{form}.f16x2 %h0, %r1; cvt.u32.u16 %r2, %h0;");
    for (form, expected) in [
        ("e4m3x2", [0x7e38, 0x7ec0, 0x7f00, 0x5801]),
        ("relu.e4m3x2", [0x7e38, 0x7e00, 0x7f00, 0x5801]),
        ("e5m2x2", [0x5f3c, 0x7bc0, 0x7f00, 0x4c18]),
        ("relu.e5m2x2", [0x5f3c, 0x7b00, 0x7f00, 0x4c18]),
    ] {
        assert_eq!(words(&cvt(form), &input), expected, "{form}");
    }
}

/// All bytes, and back.
#[test]
fn bytes_to_halves() {
    let bytes: Vec<u32> = (0..256).collect();
    let value = |byte: u32, bias: i32, mantissa_bits: u32| {
        let (exponent, steps) = (byte >> mantissa_bits, 1 << mantissa_bits);
        let mantissa = f64::from(byte & (steps - 1)) / f64::from(steps);
        match exponent {
            0 => mantissa * 2f64.powi(1 - bias),
            e => (1.0 + mantissa) * 2f64.powi(e as i32 - bias),
        }
    };
    let half = |byte: u32, relu: bool, e4m3: bool| {
        let (negative, magnitude) = (byte & 0x80 != 0, byte & 0x7f);
        let sign = if negative { 0x8000 } else { 0 };
        match (e4m3, magnitude) {
            (true, 0x7f) | (false, 0x7d..) => 0x7fff,
            _ if negative && relu => 0,
            (false, 0x7c) => sign | 0x7c00,
            _ => {
                let v = if e4m3 {
                    value(magnitude, 7, 3)
                } else {
                    value(magnitude, 15, 2)
                };
                // All are normal halves, or multiples of the smallest half.
                let exponent = v.log2().floor().max(-14.0) as i32;
                let steps = (v * 2f64.powi(10 - exponent)) as u32;
                sign | if v == 0.0 {
                    0
                } else {
                    ((exponent + 14) as u32 * 1024) + steps
                }
            }
        }
    };
    for (format, e4m3) in [("e4m3x2", true), ("e5m2x2", false)] {
        for (modifier, relu) in [("", false), (".relu", true)] {
            let body = format!(
                "shl.b32 %r3, %r1, 8; or.b32 %r3, %r3, 0x38; cvt.u16.u32 %h0, %r3; cvt.rn{modifier}.f16x2.{format} %r2, %h0;"
            );
            let expected: Vec<u32> = bytes
                .iter()
                .map(|&b| half(b, relu, e4m3) << 16 | half(0x38, relu, e4m3))
                .collect();
            assert_eq!(words(&body, &bytes), expected, "{format}{modifier}");
            if relu {
                continue;
            }
            // A byte's value converts back to the byte, except for infinities and the sign of a
            // NaN.
            let body = format!(
                "{body} cvt.rn.satfinite.{format}.f16x2 %h1, %r2; cvt.u32.u16 %r2, %h1; shr.u32 %r2, %r2, 8;"
            );
            let expected: Vec<u32> = bytes
                .iter()
                .map(|&b| match (e4m3, b & 0x7f) {
                    (true, 0x7f) | (false, 0x7d..) => 0x7f,
                    (false, 0x7c) => b - 1,
                    _ => b,
                })
                .collect();
            assert_eq!(words(&body, &bytes), expected, "{format} and back");
        }
    }
}

/// NVIDIA's assembler refuses all of these.
#[test]
fn what_is_no_conversion_is_refused() {
    let good = text("cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;");
    assert!(lower::check(&good).is_ok());
    let refusal = lower::check(&good.replace("sm_89", "sm_86"));
    assert!(matches!(refusal, Err(Error::Unsupported { at, .. }) if at.line == 8));
    for bad in [
        "cvt.rn.e4m3x2.f32 %h0, %f0, %f1;",
        "cvt.satfinite.e4m3x2.f32 %h0, %f0, %f1;",
        "cvt.rz.satfinite.e5m2x2.f32 %h0, %f0, %f1;",
        "cvt.rn.satfinite.e5m2x2.f32 %h0, %f0;",
        "cvt.rn.satfinite.e5m2x2.bf16x2 %h0, %r0;",
        "cvt.rn.satfinite.f16x2.e5m2x2 %r0, %h0;",
        "cvt.f16x2.e5m2x2 %r0, %h0;",
        "cvt.rn.bf16x2.e5m2x2 %r0, %h0;",
    ] {
        assert!(lower::check(&text(bad)).is_err(), "{bad}");
    }
}
