//! Forms that compilers seldom write: constant expressions, variables inside functions, registers
//! of 128 bits, memory sized at run time, the constant space; and forms newer than the text's
//! target.

use crate::common::{Arg, Device};
use outboard_ptx::{Error, FaultKind, LaunchError, lower};

const HEADER: &str = ".version 8.3\n.target sm_80\n.address_size 64\n";

/// Runs `k(out)` with one warp, and returns the words that it wrote.
fn words(text: &str, count: usize) -> Vec<u32> {
    let device = Device::new(text);
    let out = device.alloc(count.max(32) * 4);
    device.run("k", 1, 32, &[Arg::Ptr(out)]);
    device.download(out, count)
}

/// Writes a kernel whose `%rd0` is `out` and whose `%rd1` is `out + 4 * thread`.
fn kernel(before: &str, body: &str) -> String {
    format!(
        "{HEADER}{before}\n.visible .entry k(.param .u64 out) {{\n\
         .reg .b64 %rd<10>; .reg .b32 %r<10>; .reg .pred %p<4>; .reg .b128 %q<4>; .reg .b16 %h<4>;\n\
         ld.param.u64 %rd0, [out]; mov.u32 %r9, %tid.x; mul.wide.u32 %rd9, %r9, 4; add.u64 %rd1, %rd0, %rd9;\n\
         {body}\nret;\n}}\n"
    )
}

#[test]
fn constant_expressions_are_operands() {
    for (text, value) in [
        ("4*5+2", 22),
        ("2+4*5", 22),
        ("(2+4)*5", 30),
        ("1<<4|3", 19),
        ("(1 << 4) - 1 & 0xfe", 14),
        ("7 / 2 - 7 % 4", 0),
        ("-7 / 2", -3i64 as u64),
        ("(.u64)-8 / 0x4000000000000000", 3),
        ("-8 >> 1", -4i64 as u64),
        ("(.u64)(-8) >> 60", 15),
        ("0xfffffffffffffff8 >> 60", 15),
        ("~0 & 0xff ^ 0x0f", 0xf0),
        ("!5 + !0", 1),
        ("3 > 2 && 2 >= 3 || 1 != 1", 0),
        ("5 <= 5 == 1", 1),
        ("1 ? 2 ? 3 : 4 : 5", 3),
        ("0 ? 2 : (0 ? 3 : 4)", 4),
        ("WARP_SZ", 32),
        ("((((1))))", 1),
        ("- 5 + 6", 1),
        ("1 << 64", 0),
        ("-9223372036854775808", 1 << 63),
    ] {
        let body = format!("mov.u64 %rd2, {text}; st.global.u64 [%rd0], %rd2;");
        // `WARP_SZ` is a name of 32 bits, so it goes through a register.
        let body = match text {
            "WARP_SZ" => {
                "mov.u32 %r1, WARP_SZ; cvt.u64.u32 %rd2, %r1; st.global.u64 [%rd0], %rd2;".into()
            }
            _ => body,
        };
        let got = words(&kernel("", &body), 2);
        assert_eq!(u64::from(got[0]) | u64::from(got[1]) << 32, value, "{text}");
    }
    // As an operand of any instruction, next to floats and in argument lists.
    let text = kernel(
        ".func (.reg .b32 r) twice(.reg .b32 a) { add.u32 r, a, a; ret; }",
        "add.u32 %r1, %r9, (1<<3)+1; call (%r2), twice, (3*7); add.f32 %r3, 0f3F800000, -0f40000000;
         add.u32 %r1, %r1, %r2; sub.u32 %r1, %r1, -3; st.global.u32 [%rd1], %r1; @!%p0 bra there; there:",
    );
    assert_eq!(words(&text, 3), [54, 55, 56]);
    for bad in ["1 / 0", "1 % 0", "(1", "1 +", "* 2", "1 ? 2"] {
        let text = kernel("", &format!("mov.u64 %rd2, {bad};"));
        assert!(
            matches!(lower::check(&text), Err(Error::Syntax { .. })),
            "{bad}"
        );
    }
    let deep = format!("mov.u64 %rd2, {}1;", "(".repeat(100_000));
    assert!(matches!(
        lower::check(&kernel("", &deep)),
        Err(Error::Syntax { .. })
    ));
    let signs = format!("mov.u64 %rd2, {}1;", "- ".repeat(100_000));
    assert!(matches!(
        lower::check(&kernel("", &signs)),
        Err(Error::Syntax { .. })
    ));
}

#[test]
fn variables_stand_inside_functions() {
    let text = kernel(
        ".func (.reg .b32 r) count() {
            .global .u32 calls = 100;
            .const .u32 step[2] = {3, 5};
            .reg .b32 %a<3>;
            atom.global.add.u32 %a0, [calls], 1;
            ld.const.u32 %a1, [step+4];
            add.u32 r, %a0, %a1;
            ret;
         }",
        "setp.ne.u32 %p0, %r9, 0; @%p0 ret;
         .global .u32 calls = 7;
         { .global .u32 calls = 9; ld.global.u32 %r3, [calls]; st.global.u32 [%rd0+12], %r3; }
         call (%r1), count, (); call (%r2), count, (); ld.global.u32 %r3, [calls];
         st.global.u32 [%rd0], %r1; st.global.u32 [%rd0+4], %r2; st.global.u32 [%rd0+8], %r3;",
    );
    assert_eq!(words(&text, 4), [105, 106, 7, 9]);
}

#[test]
fn constants_are_a_space_of_their_own() {
    let text = kernel(
        ".global .u32 before = 1; .const .u32 one = 1; .global .u32 between = 2; .const .u32 two[3] = {1, 2, 3};",
        "setp.ne.u32 %p0, %r9, 0; @%p0 ret; mov.u32 %r4, 0;
         cvta.const.u64 %rd2, one; cvta.const.u64 %rd3, two; add.u64 %rd3, %rd3, 8;
         cvta.global.u64 %rd4, before; cvta.global.u64 %rd5, between;
         isspacep.const %p1, %rd2; @%p1 or.b32 %r4, %r4, 1;
         isspacep.const %p1, %rd3; @%p1 or.b32 %r4, %r4, 2;
         isspacep.const %p1, %rd4; @%p1 or.b32 %r4, %r4, 4;
         isspacep.const %p1, %rd5; @%p1 or.b32 %r4, %r4, 8;
         isspacep.const %p1, %rd0; @%p1 or.b32 %r4, %r4, 16;
         isspacep.global %p1, %rd2; @%p1 or.b32 %r4, %r4, 32;
         isspacep.global %p1, %rd3; @%p1 or.b32 %r4, %r4, 64;
         isspacep.global %p1, %rd4; @%p1 or.b32 %r4, %r4, 128;
         isspacep.global %p1, %rd5; @%p1 or.b32 %r4, %r4, 256;
         isspacep.global %p1, %rd0; @%p1 or.b32 %r4, %r4, 512;
         st.global.u32 [%rd0], %r4;",
    );
    assert_eq!(words(&text, 1), [1 | 2 | 128 | 256 | 512]);
}

#[test]
fn registers_of_128_bits() {
    let text = kernel(
        "",
        "setp.ne.u32 %p0, %r9, 0; @%p0 ret;
         mov.b128 %q1, {0x1111111122222222, 0x3333333344444444};
         mov.b128 %q2, %q1;
         mov.b128 {%rd2, %rd3}, %q2;
         st.global.u64 [%rd0], %rd2; st.global.u64 [%rd0+8], %rd3;
         st.global.b128 [%rd0+16], %q1;
         mov.b128 %q3, {%rd3, %rd2}; mov.b128 {%rd3, %rd2}, %q3;
         st.global.b128 [%rd0+32], %q3;
         ld.global.b128 %q0, [%rd0+16]; st.global.b128 [%rd0+48], %q0;",
    );
    let once = [0x2222_2222, 0x1111_1111, 0x4444_4444, 0x3333_3333];
    let swapped = [once[2], once[3], once[0], once[1]];
    assert_eq!(words(&text, 16), [once, once, swapped, once].concat());
    for bad in [
        "mov.b64 %rd2, %q0;",
        "mov.b32 %r2, %q0;",
        "st.global.u32 [%rd0], %q0;",
        "ld.global.u64 %q0, [%rd0];",
        "add.u64 %rd2, %q0, 1;",
        "mov.b128 %q0, %rd2;",
        "mov.b128 {%r1, %r2}, %q0;",
    ] {
        assert!(
            matches!(lower::check(&kernel("", bad)), Err(Error::Invalid { .. })),
            "{bad}"
        );
    }
    // An address that is not a multiple of 16.
    let device = Device::new(&kernel("", "ld.global.b128 %q0, [%rd0+8];"));
    let out = device.alloc(64);
    let fault = device.try_run("k", [1; 3], [1; 3], 0, &[Arg::Ptr(out)]);
    assert!(
        matches!(&fault, Err(LaunchError::Fault(f)) if matches!(f.kind, FaultKind::MisalignedAddress { bytes: 16, .. })),
        "{fault:?}"
    );
}

#[test]
fn memory_sized_at_run_time() {
    // Each lane allocates as much as its number says, writes it, calls a function that allocates
    // too, and reads it again.
    let text = kernel(
        ".func (.reg .b32 r) deeper(.reg .b32 n) {
            .reg .b64 %a<3>; .reg .b32 %b<3>; .reg .pred %p;
            mov.u32 r, 0; setp.eq.u32 %p, n, 0; @%p ret;
            alloca.u64 %a0, 64;
            st.local.u32 [%a0], n; st.local.u32 [%a0+60], n;
            sub.u32 %b0, n, 1; call (%b1), deeper, (%b0);
            ld.local.u32 %b0, [%a0]; ld.local.u32 %b2, [%a0+60];
            add.u32 r, %b1, %b0; add.u32 r, r, %b2;
            ret;
         }",
        "cvt.u64.u32 %rd2, %r9; mul.lo.u64 %rd2, %rd2, 8; add.u64 %rd2, %rd2, 8;
         stacksave.u64 %rd3;
         alloca.u64 %rd4, %rd2;
         add.u64 %rd5, %rd4, %rd2;
         st.local.u32 [%rd4], %r9; st.local.u32 [%rd5+-4], %r9;
         call (%r1), deeper, (10);
         alloca.u64 %rd6, 100, 256;
         and.b64 %rd7, %rd6, 255; cvt.u32.u64 %r2, %rd7;
         setp.ge.u64 %p1, %rd6, %rd5; selp.u32 %r3, 0, 1, %p1;
         ld.local.u32 %r4, [%rd4]; ld.local.u32 %r5, [%rd5+-4];
         stackrestore.u64 %rd3;
         alloca.u64 %rd8, 8;
         setp.eq.u64 %p2, %rd8, %rd4; selp.u32 %r6, 0, 1000, %p2;
         cvta.local.u64 %rd8, %rd8; st.u32 [%rd8+4], 5; ld.u32 %r7, [%rd8+4];
         add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5;
         add.u32 %r1, %r1, %r6; add.u32 %r1, %r1, %r7;
         st.global.u32 [%rd1], %r1;",
    );
    let expected: Vec<u32> = (0..32).map(|lane| 110 + 2 * lane + 5).collect();
    assert_eq!(words(&text, 32), expected);
    // A function's allocation is freed when it returns: a thousand calls fit where ten nested ones
    // do.
    let text = kernel(
        ".func brief() { .reg .b64 %a; alloca.u64 %a, 4096; st.local.u32 [%a+4092], 1; ret; }",
        "mov.u32 %r1, 0; again: call brief, (); add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 1000; @%p0 bra again;
         alloca.u32 %r2, 32, 16; st.local.u32 [%r2], %r1; ld.local.u32 %r3, [%r2]; st.global.u32 [%rd1], %r3;",
    );
    assert_eq!(words(&text, 2), [1000, 1000]);
    for (body, what) in [
        ("again: alloca.u64 %rd2, 4096; bra again;", "overflow"),
        ("mov.u64 %rd3, -1; alloca.u64 %rd2, %rd3;", "overflow"),
        (
            "mov.u64 %rd3, -8; alloca.u64 %rd2, %rd3, 65536;",
            "overflow",
        ),
    ] {
        let device = Device::new(&kernel("", body));
        let out = device.alloc(128);
        let fault = device.try_run("k", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(out)]);
        assert!(
            matches!(&fault, Err(LaunchError::Fault(f)) if matches!(f.kind, FaultKind::StackOverflow { .. })),
            "{what}: {fault:?}"
        );
    }
}

#[test]
fn what_is_newer_than_the_target_is_refused() {
    let instructions = [
        "add.rn.bf16 %h0, %h1, %h2;",
        "sub.bf16x2 %r0, %r1, %r2;",
        "mul.bf16 %h0, %h1, %h2;",
        "tanh.approx.bf16 %h0, %h1;",
        "ex2.approx.ftz.bf16x2 %r0, %r1;",
        "set.lt.u32.bf16 %r0, %h1, %h2;",
        "setp.neu.bf16x2 %p0|%p1, %r1, %r2;",
        "cvt.rn.bf16.f16 %h0, %h1;",
        "cvt.rzi.s32.bf16 %r0, %h1;",
        "atom.global.add.noftz.bf16 %h0, [%rd0], %h1;",
        "red.global.add.noftz.bf16x2 [%rd0], %r1;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
        "add.u16x2 %r0, %r1, %r2;",
        "min.s16x2 %r0, %r1, %r2;",
        "max.relu.s16x2 %r0, %r1, %r2;",
        "min.relu.s32 %r0, %r1, %r2;",
    ];
    for instruction in instructions {
        let text = kernel("", instruction);
        match lower::check(&text) {
            Err(Error::Unsupported {
                at,
                instruction: named,
                reason,
            }) => {
                let line = text.lines().nth(at.line as usize - 1).unwrap();
                assert!(
                    line == instruction && instruction.starts_with(&named),
                    "{line}"
                );
                assert!(
                    reason.contains("sm_90") && reason.contains("sm_80"),
                    "{reason}"
                );
            }
            other => panic!("{instruction}: {other:?}"),
        }
        for later in ["sm_90", "sm_90a", "sm_120"] {
            let text = text.replace("sm_80", later);
            assert!(lower::check(&text).is_ok(), "{instruction} for {later}");
        }
    }
    // Instructions of the same names that sm_80 has.
    for instruction in [
        "fma.rn.bf16 %h0, %h1, %h2, %h3;",
        "max.bf16x2 %r0, %r1, %r2;",
        "neg.bf16 %h0, %h1;",
        "cvt.rn.bf16.f32 %h0, %r1;",
        "cvt.f32.bf16 %r0, %h1;",
        "cvt.rn.bf16x2.f32 %r0, %r1, %r2;",
        "add.f16 %h0, %h1, %h2;",
    ] {
        let checked = lower::check(&kernel("", instruction));
        assert!(checked.is_ok(), "{instruction}: {checked:?}");
    }
    // Each of several units has its own target.
    let both = format!(
        "{}\n{}",
        kernel("", "ret;").replace("entry k(", "entry other("),
        kernel("", instructions[0]).replace("sm_80", "sm_90")
    );
    assert!(lower::check(&both).is_ok());
}

/// Writes a kernel for sm_100, which has vectors of 32 bytes.
fn kernel_100(body: &str) -> String {
    kernel("", body)
        .replace("sm_80", "sm_100")
        .replace(".version 8.3", ".version 8.8")
}

#[test]
fn vectors_of_32_bytes_lose_nothing() {
    let body = "mul.wide.u32 %rd2, %r9, 32; add.u64 %rd2, %rd2, %rd0; cvt.u64.u32 %rd3, %r9; add.u64 %rd4, %rd3, 100; add.u64 %rd5, %rd3, 200;\n\
        add.u64 %rd6, %rd3, 0x500000000; st.global.v4.u64 [%rd2], {%rd3, %rd4, %rd5, %rd6};\n\
        ld.global.v4.b64 {%rd3, %rd4, %rd5, %rd6}, [%rd2]; st.v4.b64 [%rd2], {%rd6, %rd5, %rd4, %rd3};";
    let expected: Vec<u32> = (0..32)
        .flat_map(|t| [t, 5, t + 200, 0, t + 100, 0, t, 0])
        .collect();
    assert_eq!(words(&kernel_100(body), 256), expected);
    // Eight words, of which a load may omit some; by all lanes and by some.
    let body = ".reg .b32 %x<9>; mul.wide.u32 %rd2, %r9, 32; add.u64 %rd2, %rd2, %rd0; mul.lo.u32 %x0, %r9, 10;
        add.u32 %x1, %x0, 1; add.u32 %x2, %x0, 2; add.u32 %x3, %x0, 3; add.u32 %x4, %x0, 4; add.u32 %x5, %x0, 5; add.u32 %x6, %x0, 6; add.u32 %x7, %x0, 7;
        st.volatile.global.v8.u32 [%rd2], {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7}; mov.b32 %x8, -1;
        setp.lt.u32 %p0, %r9, 16; @%p0 ld.relaxed.gpu.global.v8.b32 {%x7, %x6, _, %x4, %x3, %x2, %x1, %x0}, [%rd2];
        @!%p0 ld.global.nc.v8.b32 {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7}, [%rd2];
        st.v8.f32 [%rd2], {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7};";
    let expected: Vec<u32> = (0..32u32)
        .flat_map(|t| {
            let order = match t {
                0..16 => [7, 6, 5, 4, 3, 5, 1, 0],
                _ => [0, 1, 2, 3, 4, 5, 6, 7],
            };
            order.map(|i| t * 10 + i)
        })
        .collect();
    assert_eq!(words(&kernel_100(body), 256), expected);
}

/// NVIDIA's assembler refuses all of these.
#[test]
fn vectors_of_32_bytes_are_refused_before_sm_100() {
    let vectors = [
        "ld.global.v4.u64 {%rd3, %rd4, %rd5, %rd6}, [%rd2];",
        "st.global.v4.b64 [%rd2], {%rd3, %rd4, %rd5, %rd6};",
        "ld.v4.f64 {%rd3, %rd4, %rd5, %rd6}, [%rd2];",
        "ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%rd2];",
        "st.relaxed.gpu.global.v8.f32 [%rd2], {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7};",
    ];
    for vector in vectors {
        let new = kernel_100(vector);
        assert!(lower::check(&new).is_ok(), "{vector}");
        for old in [
            new.replace("sm_100", "sm_90"),
            new.replace(".version 8.8", ".version 8.7"),
        ] {
            let Err(Error::Unsupported { at, .. }) = lower::check(&old) else {
                panic!("{vector}");
            };
            let line = old.lines().nth(at.line as usize - 1).unwrap();
            assert!(line.contains(vector), "{line}");
        }
    }
    for vector in [
        "ld.local.v4.b64 {%rd3, %rd4, %rd5, %rd6}, [there];",
        "ld.shared.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%r1];",
        "ld.global.v8.b64 {%rd2, %rd3, %rd4, %rd5, %rd6, %rd7, %rd8, %rd9}, [%rd2];",
        "ld.global.v8.u16 {%h0, %h1, %h2, %h3, %h0, %h1, %h2, %h3}, [%rd2];",
    ] {
        let text = kernel_100(&format!(".local .align 32 .b8 there[32]; {vector}"));
        assert!(
            matches!(lower::check(&text), Err(Error::Invalid { .. })),
            "{vector}"
        );
    }
}

/// As ptxas has it, with a warning; Taichi's shared arrays are of this form.
#[test]
fn an_external_shared_array_with_a_length_is_the_kernels_own() {
    let body = "st.shared.u32 [sh+252], 7; ld.shared.u32 %r1, [sh+252]; st.global.u32 [%rd0], %r1;";
    let text = kernel(".extern .shared .align 8 .b8 sh[256];", body);
    assert_eq!(words(&text, 1), [7]);
    let module = Device::new(&text);
    assert_eq!(module.module.kernel("k").unwrap().shared_bytes, 256);
}

/// LLVM declares `vprintf` so for Taichi.
#[test]
fn vprintf_may_be_declared_without_its_result() {
    let before = ".extern .func vprintf(.param .b64 a, .param .b64 b);\n\
                  .global .align 1 .b8 text[3] = {104, 105, 0};";
    let body = "{ .param .b64 p0; .param .b64 p1; mov.u64 %rd2, text; mov.u64 %rd3, 0;\n\
                st.param.b64 [p0], %rd2; st.param.b64 [p1], %rd3; call.uni vprintf, (p0, p1); }\n\
                mov.u32 %r1, 3; st.global.u32 [%rd0], %r1;";
    assert_eq!(words(&kernel(before, body), 1), [3]);
}

/// PTX ISA, Arrays as Operands: the index counts elements. drjit's indirect calls are so.
#[test]
fn elements_of_arrays_are_addresses() {
    let before = ".visible .global .align 8 .u64 wide[4] = {11, 22, 33, 44};\n\
                  .const .align 4 .u32 fixed[3] = {5, 6, 7};\n.shared .align 4 .u32 own[64];";
    let body = "mov.u32 %r1, 2; ld.global.u64 %rd2, wide[%r1]; ld.global.u64 %rd3, wide[3];\n\
                st.global.u32 [%rd0], %rd2; st.global.u32 [%rd0+4], %rd3;\n\
                ld.global.u64 %rd2, wide[%r1+-1]; st.global.u32 [%rd0+8], %rd2;\n\
                ld.const.u32 %r2, fixed[1]; st.global.u32 [%rd0+12], %r2;\n\
                st.shared.u32 own[3], 9; mov.u32 %r1, 4; ld.shared.u32 %r2, own[%r1-1];\n\
                st.global.u32 [%rd0+16], %r2; mov.u32 %r2, own[5]; mov.u32 %r3, own; sub.u32 %r2, %r2, %r3;\n\
                st.global.u32 [%rd0+20], %r2; mov.u64 %rd2, 1; ld.global.u64 %rd3, wide[%rd2];\n\
                st.global.u32 [%rd0+24], %rd3;";
    assert_eq!(words(&kernel(before, body), 7), [33, 44, 22, 6, 9, 20, 22]);
    for (text, said) in [
        ("ld.global.u64 %rd2, %rd1[2];", "`%rd1` is no array"),
        ("ld.global.u64 %rd2, wide[nothing];", "nothing"),
        ("ld.global.u64 %rd2, wide[%r1;", "expected"),
        (
            "mov.u64 %rd2, wide[%r1];",
            "expected a register or constant",
        ),
    ] {
        let error = lower::check(&kernel(before, text)).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// ptxas 13.0 takes these too.
#[test]
fn offsets_are_expressions() {
    let before = ".global .align 4 .u32 g[2*4] = {10, 11, 12, 13, 14};";
    let body = "ld.global.u32 %r1, [g+4*2]; st.global.u32 [%rd0], %r1; mov.u64 %rd2, g;\n\
                ld.global.u32 %r1, [%rd2+(1+2)*4]; st.global.u32 [%rd0+8-4], %r1;\n\
                ld.global.u32 %r1, g[8/2]; st.global.u32 [%rd0+8], %r1;\n\
                mov.u64 %rd3, g+2*2; ld.global.u32 %r1, [%rd3+-4]; st.global.u32 [%rd0+3*4], %r1;";
    assert_eq!(words(&kernel(before, body), 4), [12, 13, 14, 10]);
    let Err(error) = lower::check(&kernel(before, "ld.global.u32 %r1, [g+4*];")) else {
        panic!("half an expression");
    };
    assert!(error.to_string().contains("a constant"), "{error}");
}

#[test]
fn special_registers_are_vectors() {
    let body = "mov.v4.u32 {%r1, %r2, %r3, %r4}, %ntid; add.u32 %r1, %r1, %r2; add.u32 %r3, %r3, %r4;\n\
                st.global.u32 [%rd0], %r1; st.global.u32 [%rd0+4], %r3; .reg .v4 .u32 %v; mov.v4.u32 %v, %tid;\n\
                shl.b32 %r5, %v.x, 1; setp.eq.u32 %p0, %v.x, 5; @%p0 st.global.u32 [%rd0+8], %r5;";
    assert_eq!(words(&kernel("", body), 3), [33, 1, 10]);
    for text in [
        "mov.v4.u32 %tid, {%r1, %r2, %r3, %r4};",
        "mov.v2.u32 {%r1, %r2}, %tid;",
        "mov.v2.u64 {%rd2, %rd3}, %tid;",
    ] {
        assert!(lower::check(&kernel("", text)).is_err(), "{text}");
    }
}

/// ptxas makes a test of bits 61, 62 and 63 of it.
#[test]
fn addresses_say_the_kind_of_an_object() {
    let body = "mov.u64 %rd2, 0x5000000000000000; istypep.texref %p0, %rd2; istypep.samplerref %p1, %rd2;\n\
                istypep.surfref %p2, %rd2; mov.u64 %rd2, 0xa000000000000000; istypep.texref %p3, %rd2;\n\
                selp.u32 %r1, 1, 0, %p0; st.global.u32 [%rd0], %r1; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%rd0+4], %r1;\n\
                selp.u32 %r1, 1, 0, %p2; st.global.u32 [%rd0+8], %r1; selp.u32 %r1, 1, 0, %p3; st.global.u32 [%rd0+12], %r1;\n\
                istypep.surfref %p0, %rd2; selp.u32 %r1, 1, 0, %p0; st.global.u32 [%rd0+16], %r1;";
    assert_eq!(words(&kernel("", body), 5), [0, 1, 0, 1, 1]);
}

#[test]
fn attributes_may_stand_before_the_space() {
    let before = ".visible .attribute(.managed) .global .align 4 .u32 shown = 7;\n\
                  .global .attribute(.managed) .u32 other; .global .u32 plain;";
    let device = Device::new(&kernel(before, ""));
    let managed = |name| device.module.global(name).unwrap().managed;
    assert_eq!(
        ["shown", "other", "plain"].map(managed),
        [true, true, false]
    );
}

#[test]
fn references_are_refused_by_name() {
    for (before, kind) in [
        (".global .texref image;", ".texref"),
        (".visible .global .samplerref s;", ".samplerref"),
        (".global .surfref image;", ".surfref"),
        (".tex .u32 image;", ".tex"),
    ] {
        let Err(Error::Unsupported {
            at,
            instruction,
            reason,
        }) = lower::check(&kernel(&format!("\n{before}"), ""))
        else {
            panic!("{before}");
        };
        assert_eq!((at.line, instruction.as_str()), (5, kind));
        assert!(reason.starts_with("texture, sampler and surface references"));
    }
}
