//! Single instructions at their edges. Expected values follow the PTX ISA's descriptions and
//! pseudocode.

use crate::common::{Arg, Device, check32, check64, run_thread};
use outboard_ptx::{Error, Memory, Module};

fn f(v: f32) -> u32 {
    v.to_bits()
}

#[test]
fn integer_arithmetic() {
    check32(
        "add.sat.s32 %r0, 0x7fffffff, 1; sub.sat.s32 %r1, 0x80000000, 1; mul.hi.s32 %r2, -1, 5; mul.hi.u32 %r3, -1, -1;
         div.s32 %r4, -7, 2; rem.s32 %r5, -7, 2; div.u32 %r6, 7, 0; min.s32 %r7, -1, 1; min.u32 %r8, -1, 1;
         abs.s32 %r9, 0x80000000; sad.u32 %r10, 3, 9, 100; mad.hi.s32 %r11, 0x40000000, 8, 1; mul24.lo.s32 %r12, 0x00ffffff, 3;
         mul24.hi.u32 %r13, 0x01ffffff, 0x00010000; div.s32 %r14, 0x80000000, -1;",
        &[
            0x7fff_ffff, 0x8000_0000, u32::MAX, 0xffff_fffe, -3i32 as u32, -1i32 as u32, u32::MAX, u32::MAX, 1,
            0x8000_0000, 106, 3, -3i32 as u32, 0x00ff_ffff, 0x8000_0000,
        ],
    );
    check64(
        "mul.hi.u64 %rd0, -1, -1; mul.hi.s64 %rd1, -1, -1; mul.wide.s32 %rd2, -3, 7; mul.wide.u32 %rd3, -1, -1;
         mad.lo.s64 %rd4, 3, 5, -16; mad.wide.s32 %rd5, -2, 3, 10; div.u64 %rd6, 5, 0; rem.s64 %rd7, -9, 4; abs.s64 %rd8, -5;",
        &[u64::MAX - 1, 0, -21i64 as u64, 0xffff_fffe_0000_0001, -1i64 as u64, 4, u64::MAX, -1i64 as u64, 5],
    );
}

#[test]
fn sixteen_bits() {
    check32(
        "mov.u16 %rs0, 0xffff; mov.u16 %rs1, 2; add.s16 %rs2, %rs0, %rs1; cvt.u32.u16 %r0, %rs2;
         mul.lo.s16 %rs2, %rs0, %rs1; cvt.s32.s16 %r1, %rs2; mul.wide.s16 %r2, %rs0, %rs1; mul.wide.u16 %r3, %rs0, %rs1;
         shr.s16 %rs3, %rs0, 4; cvt.u32.u16 %r4, %rs3; shr.u16 %rs3, %rs0, 4; cvt.u32.u16 %r5, %rs3;
         min.s16 %rs3, %rs0, %rs1; cvt.u32.u16 %r6, %rs3; max.u16 %rs3, %rs0, %rs1; cvt.u32.u16 %r7, %rs3;
         setp.lt.s16 %p0, %rs0, %rs1; selp.u32 %r8, 1, 0, %p0; setp.lt.u16 %p0, %rs0, %rs1; selp.u32 %r9, 1, 0, %p0;
         not.b16 %rs3, %rs1; cvt.u32.u16 %r10, %rs3; neg.s16 %rs3, %rs1; cvt.u32.u16 %r11, %rs3; mul.hi.s16 %rs3, %rs0, %rs1; cvt.u32.u16 %r12, %rs3;
         mad.lo.u16 %rs3, %rs0, %rs1, %rs1; cvt.u32.u16 %r13, %rs3; div.s16 %rs3, %rs0, %rs1; cvt.u32.u16 %r14, %rs3;",
        &[1, -2i32 as u32, -2i32 as u32, 0x1fffe, 0xffff, 0x0fff, 0xffff, 0xffff, 1, 0, 0xfffd, 0xfffe, 0xffff, 0, 0],
    );
}

#[test]
fn extended_precision() {
    // 2^64 - 1 + 1 by halves; 0 - 1; (2^32 - 1)^2 + 2^32 by mad with carry.
    check32(
        "add.cc.u32 %r0, -1, 1; addc.cc.u32 %r1, -1, 0; addc.u32 %r2, 0, 0;
         sub.cc.u32 %r3, 0, 1; subc.cc.u32 %r4, 5, 5; subc.u32 %r5, 7, 0;
         mad.lo.cc.u32 %r6, -1, -1, -1; madc.hi.cc.u32 %r7, -1, -1, 1; addc.u32 %r8, 0, 0;",
        &[0, 0, 1, u32::MAX, u32::MAX, 6, 0, 0, 1],
    );
    check64(
        "add.cc.u64 %rd0, -1, 2; addc.u64 %rd1, 10, 20; sub.cc.u64 %rd2, 1, 2; subc.u64 %rd3, 9, 1;",
        &[1, 31, u64::MAX, 7],
    );
}

#[test]
fn bit_fields_and_shifts() {
    check32(
        "bfe.u32 %r0, 0xabcd1234, 8, 8; bfe.s32 %r1, 0x0000ff00, 8, 8; bfe.s32 %r2, 0x80000000, 28, 8; bfe.u32 %r3, 0xffffffff, 40, 4;
         bfe.s32 %r4, 0x80000000, 40, 4; bfi.b32 %r5, 0xff, 0, 4, 8; bfi.b32 %r6, 0xff, 0x11111111, 28, 8; bfi.b32 %r7, 1, 2, 33, 1;
         shl.b32 %r8, 1, 32; shr.s32 %r9, 0x80000000, 99; shr.u32 %r10, 0x80000000, 32; bfe.u32 %r11, 0xffffffff, 0, 32; bfe.u32 %r12, 5, 0, 0;",
        &[0x12, u32::MAX, 0xffff_fff8, 0, u32::MAX, 0xff0, 0xf111_1111, 2, 0, u32::MAX, 0, u32::MAX, 0],
    );
    check32(
        "shf.l.clamp.b32 %r0, 0x12345678, 0x9abcdef0, 32; shf.l.wrap.b32 %r1, 0x12345678, 0x9abcdef0, 36; shf.r.wrap.b32 %r2, 0x12345678, 0x9abcdef0, 8;
         shf.r.clamp.b32 %r3, 0x12345678, 0x9abcdef0, 40; popc.b32 %r4, 0xf0f0; clz.b32 %r5, 0; brev.b32 %r6, 1; bfind.u32 %r7, 0; bfind.s32 %r8, -1;
         bfind.s32 %r9, -2; bfind.shiftamt.u32 %r10, 1; prmt.b32 %r11, 0x83828180, 0x07060504, 0x7c04; lop3.b32 %r12, 0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0x96;
         cnot.b32 %r13, 0; fake: not.b32 %r14, 0;",
        &[
            0x1234_5678, 0xabcd_ef01, 0xf012_3456, 0x9abc_def0, 8, 32, 0x8000_0000, u32::MAX, u32::MAX, 0, 31, 0x0700_8004,
            0xff00_ff00 ^ 0xf0f0_f0f0 ^ 0xcccc_cccc, 1, u32::MAX,
        ],
    );
    check64(
        "bfe.u64 %rd0, 0xffffffffffffffff, 60, 8; bfe.s64 %rd1, 0x10, 4, 1; bfi.b64 %rd2, 0xff, 0, 60, 8; shl.b64 %rd3, 1, 64; shr.s64 %rd4, -8, 70; brev.b64 %rd5, 1;",
        &[0xf, u64::MAX, 0xf000_0000_0000_0000, 0, u64::MAX, 1 << 63],
    );
}

#[test]
fn dot_products() {
    check32(
        "dp4a.s32.s32 %r0, 0xff02ff01, 0x01010101, 10; dp4a.u32.u32 %r1, 0xff02ff01, 0x01010101, 0; dp4a.u32.s32 %r2, 0xff000001, 0xff000002, 0;
         dp2a.lo.s32.s32 %r3, 0xffff0002, 0x00000403, 0; dp2a.hi.u32.u32 %r4, 0x00010002, 0x04030000, 1;",
        &[11, 0x1ff + 2, (2 - 255) as u32, 2, 11],
    );
}

#[test]
fn float_arithmetic() {
    check32(
        "add.f32 %f0, 0f7f7fffff, 0f7f7fffff; mov.b32 %r0, %f0; add.rz.f32 %f0, 0f7f7fffff, 0f7f7fffff; mov.b32 %r1, %f0;
         mul.ftz.f32 %f0, 0f00800000, 0f3f000000; mov.b32 %r2, %f0; mul.f32 %f0, 0f00800000, 0f3f000000; mov.b32 %r3, %f0;
         min.f32 %f0, 0f7fc00000, 0f3f800000; mov.b32 %r4, %f0; max.NaN.f32 %f0, 0f7fc00000, 0f3f800000; mov.b32 %r5, %f0;
         min.f32 %f0, 0f00000000, 0f80000000; mov.b32 %r6, %f0; add.sat.f32 %f0, 0f3f800000, 0f3f800000; mov.b32 %r7, %f0;
         sub.sat.f32 %f0, 0f00000000, 0f3f800000; mov.b32 %r8, %f0; sub.f32 %f0, 0f7f800000, 0f7f800000; mov.b32 %r9, %f0;
         copysign.f32 %f0, 0f80000000, 0f40000000; mov.b32 %r10, %f0; add.rm.f32 %f0, 0f3f800000, 0fbf800000; mov.b32 %r11, %f0;
         fma.rn.f32 %f0, 0f3f800001, 0f3f800001, 0fbf800002; mov.b32 %r12, %f0; sqrt.rn.f32 %f0, 0fbf800000; mov.b32 %r13, %f0;
         div.rp.f32 %f0, 0f3f800000, 0f40400000; mov.b32 %r14, %f0; sqrt.rm.f32 %f0, 0f40000000; mov.b32 %r15, %f0;",
        &[
            f(f32::INFINITY), f(f32::MAX), 0, 0x0040_0000, f(1.0), 0x7fff_ffff, 0x8000_0000, f(1.0), 0, 0x7fff_ffff,
            f(-2.0), 0x8000_0000, f(2f32.powi(-46)), 0x7fff_ffff, 0x3eaa_aaab, 0x3fb5_04f3,
        ],
    );
    check64(
        "add.rp.f64 %fd0, 0d3ff0000000000000, 0d3c00000000000000; mov.b64 %rd0, %fd0; mul.rz.f64 %fd0, 0d3fb999999999999a, 0d4008000000000000; mov.b64 %rd1, %fd0;
         fma.rm.f64 %fd0, 0d3ff0000000000000, 0d3ff0000000000000, 0dbc00000000000000; mov.b64 %rd2, %fd0; div.rz.f64 %fd0, 0d3ff0000000000000, 0d4008000000000000; mov.b64 %rd3, %fd0;
         rcp.approx.ftz.f64 %fd0, 0d4008000000000000; mov.b64 %rd4, %fd0; div.rp.f64 %fd0, 0d3ff0000000000000, 0d4008000000000000; mov.b64 %rd5, %fd0;
         mul.rp.f64 %fd0, 0d0000000000000001, 0d0000000000000001; mov.b64 %rd6, %fd0; add.rz.f64 %fd0, 0d7fefffffffffffff, 0d7fefffffffffffff; mov.b64 %rd7, %fd0;",
        &[
            0x3ff0_0000_0000_0001, 0x3fd3_3333_3333_3333, 0x3fef_ffff_ffff_ffff, 0x3fd5_5555_5555_5555, 0x3fd5_5555_0000_0000,
            0x3fd5_5555_5555_5556, 1, 0x7fef_ffff_ffff_ffff,
        ],
    );
}

#[test]
fn comparisons() {
    check32(
        "setp.lt.f32 %p0, 0f7fc00000, 0f3f800000; selp.u32 %r0, 1, 0, %p0; setp.ltu.f32 %p0, 0f7fc00000, 0f3f800000; selp.u32 %r1, 1, 0, %p0;
         setp.ne.f32 %p0, 0f7fc00000, 0f3f800000; selp.u32 %r2, 1, 0, %p0; setp.neu.f32 %p0, 0f7fc00000, 0f3f800000; selp.u32 %r3, 1, 0, %p0;
         setp.eq.f32 %p0, 0f80000000, 0f00000000; selp.u32 %r4, 1, 0, %p0; setp.eq.ftz.f32 %p0, 0f00000001, 0f00000000; selp.u32 %r5, 1, 0, %p0;
         setp.hi.u32 %p0|%p1, -1, 1; selp.u32 %r6, 1, 0, %p0; selp.u32 %r7, 1, 0, %p1; setp.gt.and.s32 %p2, 2, 1, !%p1; selp.u32 %r8, 1, 0, %p2;
         setp.gt.xor.s32 %p2|%p3, 2, 1, %p2; selp.u32 %r9, 1, 0, %p2; selp.u32 %r10, 1, 0, %p3; set.gt.s32.s32 %r11, 2, 1; set.gt.f32.s32 %f0, 2, 1; mov.b32 %r12, %f0;
         slct.u32.s32 %r13, 5, 6, -1; testp.subnormal.f32 %p0, 0f00000001; selp.u32 %r14, 1, 0, %p0; setp.nan.f32 %p0, 0f7fc00000, 0f3f800000; selp.u32 %r15, 1, 0, %p0;",
        &[0, 1, 0, 1, 1, 1, 1, 0, 1, 0, 1, u32::MAX, f(1.0), 6, 1, 1],
    );
    // A guard that the instruction itself overwrites still applies to all of it.
    check32(
        "setp.eq.u32 %p0, 1, 1; setp.eq.u32 %p1, 1, 2; @%p0 setp.eq.u32 %p0|%p1, 1, 2; selp.u32 %r0, 1, 0, %p0; selp.u32 %r1, 1, 0, %p1;
         @%p0 mov.u32 %r2, 7; @!%p0 mov.u32 %r2, 8;",
        &[0, 1, 8],
    );
}

#[test]
fn conversions() {
    check32(
        "cvt.rzi.s32.f32 %r0, 0fc0300000; cvt.rni.s32.f32 %r1, 0f40200000; cvt.rmi.s32.f32 %r2, 0fc0200000; cvt.rpi.s32.f32 %r3, 0f40200000;
         cvt.rzi.u32.f32 %r4, 0fbf800000; cvt.rzi.s32.f32 %r5, 0f7f800000; cvt.rzi.s32.f32 %r6, 0f7fc00000; cvt.rzi.u32.f32 %r7, 0f4f800000;
         cvt.s32.s8 %r8, 0xff; cvt.u32.u8 %r9, 0x1ff; cvt.sat.s8.s32 %r10, 300; cvt.sat.u8.s32 %r11, -5; cvt.rn.f32.u32 %f0, 0xffffffff; mov.b32 %r12, %f0;
         cvt.rz.f32.u32 %f0, 0xffffffff; mov.b32 %r13, %f0; cvt.rn.f32.s64 %f0, 0x0000008000008001; mov.b32 %r14, %f0; cvt.sat.f32.f32 %f0, 0f7fc00000; mov.b32 %r15, %f0;",
        &[
            -2i32 as u32, 2, -3i32 as u32, 3, 0, i32::MAX as u32, 0, u32::MAX, u32::MAX, 0xff, 127, 0, f(4294967296.0),
            f(4294967040.0), f(549_755_879_424.0), 0,
        ],
    );
    check64(
        "cvt.s64.s32 %rd0, -1; cvt.u64.u32 %rd1, -1; cvt.rzi.s64.f64 %rd2, 0dfff8000000000000; cvt.rzi.u64.f64 %rd3, 0d43f0000000000000; cvt.rn.f64.s64 %fd0, -1; mov.b64 %rd4, %fd0;
         cvt.rn.f64.u64 %fd0, -1; mov.b64 %rd5, %fd0; cvt.rz.f64.u64 %fd0, -1; mov.b64 %rd6, %fd0; cvt.f64.f32 %fd0, 0f3f800000; mov.b64 %rd7, %fd0; cvt.rzi.s64.f64 %rd8, 0dc1e0000000200000;",
        &[
            u64::MAX, 0xffff_ffff, 1 << 63, u64::MAX, (-1f64).to_bits(), 18446744073709551616f64.to_bits(), 18446744073709549568f64.to_bits(),
            1f64.to_bits(), -2147483649i64 as u64,
        ],
    );
    check32(
        "cvt.rn.f16.f32 %rs0, 0f3f800000; cvt.u32.u16 %r0, %rs0; cvt.rz.f16.f32 %rs0, 0f47800000; cvt.u32.u16 %r1, %rs0; cvt.f32.f16 %f0, %rs0; mov.b32 %r2, %f0;
         cvt.rn.f16x2.f32 %r3, 0f40000000, 0f3f800000; cvt.rn.bf16x2.f32 %r4, 0f40000000, 0f3f800000; cvt.rn.bf16.f32 %rs0, 0f3f80ffff; cvt.u32.u16 %r5, %rs0;
         cvt.rna.tf32.f32 %r6, 0f3f801000; cvt.rn.relu.f16x2.f32 %r7, 0fc0000000, 0f3f800000; cvt.rzi.s32.f16 %r8, 0xc100; cvt.rn.f16.s32 %rs0, 2049; cvt.u32.u16 %r9, %rs0;",
        &[0x3c00, 0x7bff, f(65504.0), 0x4000_3c00, 0x4000_3f80, 0x3f81, 0x3f80_2000, 0x0000_3c00, -2i32 as u32, 0x6800],
    );
}

#[test]
fn packing() {
    check32(
        "mov.b32 %r5, 0x11223344; mov.b32 {%rs0, %rs1}, %r5; mov.b32 %r0, {%rs1, %rs0}; mov.b64 %rd1, {%r5, %r0}; mov.b64 {%r2, %r1}, %rd1; cvt.u32.u16 %r3, %rs1;",
        &[0x3344_1122, 0x3344_1122, 0x1122_3344, 0x1122],
    );
    check64(
        "mov.b64 %rd0, {1, 2}; mov.u16 %rs0, 3; mov.b64 %rd1, {%rs0, %rs0, %rs0, %rs0};",
        &[0x2_0000_0001, 0x0003_0003_0003_0003],
    );
}

#[test]
fn spaces_and_windows() {
    check32(
        ".shared .align 8 .b8 s[64]; .local .align 8 .b8 l[64]; .reg .b64 %a, %b;
         mov.u64 %a, s; cvta.shared.u64 %b, %a; st.u32 [%b+8], 77; ld.shared.u32 %r0, [s+8]; isspacep.shared %p0, %b; selp.u32 %r1, 1, 0, %p0;
         isspacep.global %p0, %b; selp.u32 %r2, 1, 0, %p0; cvta.to.shared.u64 %a, %b; ld.shared.u32 %r3, [%a+8];
         mov.u64 %a, l; cvta.local.u64 %b, %a; st.v2.u32 [%b], {5, 6}; ld.local.v2.u32 {%r4, %r5}, [l]; isspacep.local %p0, %b; selp.u32 %r6, 1, 0, %p0;
         st.shared.u8 [s], 0x80; ld.shared.s8 %r7, [s]; ld.shared.u8 %rd1, [s]; cvt.u32.u64 %r8, %rd1; ld.shared.s8 %rs0, [s]; cvt.u32.u16 %r9, %rs0;
         mov.u32 %r10, s; add.u32 %r10, %r10, 8; ld.shared.u32 %r11, [%r10]; atom.shared.add.u32 %r12, [s+8], 3; ld.shared.u32 %r13, [s+8];
         red.shared.max.s32 [s+8], 100; ld.shared.u32 %r14, [s+8]; mov.u32 %r15, %total_smem_size;",
        // The size is in units of 128 bytes.
        &[77, 1, 0, 77, 5, 6, 1, 0xffff_ff80, 0x80, 0xff80, 8, 77, 77, 80, 100, 128],
    );
}

/// `a[m - t]` is compiled to a base below the memory and an offset that leads back.
#[test]
fn addresses_of_shared_and_local_memory_have_32_bits() {
    check32(
        ".shared .align 8 .b8 s[64]; .local .align 8 .b8 l[64]; .reg .b32 %b;
         st.shared.v2.u32 [s], {8, 9}; mov.u32 %b, s; sub.s32 %b, %b, 64;
         ld.shared.u32 %r0, [%b+68]; ld.shared.v2.u32 {%r1, %r2}, [%b+64]; atom.shared.add.u32 %r3, [%b+68], 1;
         st.shared.u32 [%b+72], 5; ld.shared.u32 %r4, [s+8]; ld.shared.u32 %r5, [s+4];
         st.local.u32 [l+4], 7; mov.u32 %b, l; sub.s32 %b, %b, 64; ld.local.u32 %r6, [%b+68];",
        &[9, 8, 9, 9, 5, 10, 7],
    );
}

/// A block may use the rest of its last unit of 128 bytes, as on a GPU.
#[test]
fn shared_memory_comes_in_units() {
    check32(
        ".shared .align 4 .b8 s[4]; st.shared.u32 [s+124], 6; ld.shared.u32 %r0, [s+124];",
        &[6],
    );
}

#[test]
#[should_panic(expected = "read of 4 bytes at 0x80 of shared memory, which has 128 bytes")]
fn beyond_the_last_unit_of_shared_memory_is_a_fault() {
    run_thread(".shared .align 4 .b8 s[4]; ld.shared.u32 %r0, [s+128];");
}

#[test]
fn atomics_on_subnormals() {
    check32(
        ".shared .b32 s; st.shared.u32 [s], 1; st.global.u32 [%out], 1;
         atom.shared.add.f32 %f0, [s], 0f00000002; ld.shared.u32 %r0, [s]; atom.global.add.f32 %f0, [%out], 0f00000002; ld.global.u32 %r1, [%out];",
        &[3, 0],
    );
}

#[test]
fn branches_by_index() {
    check32(
        "mov.u32 %r1, 2; targets: .branchtargets A, B, C; brx.idx %r1, targets; A: mov.u32 %r0, 10; bra done; B: mov.u32 %r0, 20; bra done; C: mov.u32 %r0, 30; done:",
        &[30],
    );
}

fn run_module(text: &str, words: usize) -> Vec<u32> {
    let device = Device::new(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{text}"
    ));
    let out = device.alloc(words * 4);
    device.run("k", 1, 32, &[Arg::Ptr(out)]);
    device.download(out, words)
}

#[test]
fn functions_with_register_parameters() {
    let out = run_module(
        ".func (.reg .b32 sum) add2 (.reg .b32 a, .reg .b32 b) { add.s32 sum, a, b; ret; }
         .func (.reg .b64 r) twice (.reg .b64 a) { add.s64 r, a, a; }
         .visible .entry k(.param .u64 out) {
           .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p;
           ld.param.u64 %rd1, [out];
           mov.u32 %r1, %tid.x;
           mul.wide.u32 %rd2, %r1, 4;
           add.s64 %rd1, %rd1, %rd2;
           call (%r2), add2, (%r1, 100);
           setp.lt.u32 %p, %r1, 16;
           @%p call (%r2), add2, (%r2, %r2);
           cvt.u64.u32 %rd3, %r2;
           call.uni (%rd3), twice, (%rd3);
           st.global.u32 [%rd1], %rd3;
         }",
        32,
    );
    let expected: Vec<u32> = (0..32)
        .map(|t| if t < 16 { (t + 100) * 4 } else { (t + 100) * 2 })
        .collect();
    assert_eq!(out, expected);
}

#[test]
fn as_triton_writes_it() {
    let out = run_module(
        ".extern .shared .align 16 .b8 global_smem[];
         .visible .entry k(.param .u64 .ptr .global .align 16 k_param_0) .reqntid 32, 1, 1
         {
           .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>;
           .loc 1 2 0 // line comment
           ld.param.b64 %rd1, [k_param_0];
           mov.u32 %r1, %tid.x;
           setp.ne.b32 %p1, %r1, 5;
           mov.b32 %r2, 7;
           @%p1 mul.lo.s32 %r2, %r1, 3;
           // begin inline asm
           {
             .reg .pred p;
             setp.lt.u32 p, %r1, 16;
             @p mov.u32 %r2, %r1;
           }
           // end inline asm
           shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
           mad.wide.u32 %rd2, %r1, 4, %rd1;
           @%p1 st.global.b32 [ %rd2 + 0 ], { %r3 };
           ret;
         }",
        32,
    );
    let value = |t: u32| if t < 16 { t } else { t * 3 };
    let expected: Vec<u32> = (0..32)
        .map(|t| if t == 5 { 0 } else { value(t ^ 1) })
        .collect();
    assert_eq!(out, expected);
}

fn load(body: &str) -> Result<(), Error> {
    let memory = Memory::reserve(0x2f00_0000_0000, 1 << 20, 1 << 16).unwrap();
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>; .reg .pred %p<2>;\n{body}\n}}\n"
    );
    Module::load(&text, &memory).map(drop)
}

#[test]
fn refusals_name_the_line_and_instruction() {
    let unsupported = [
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%r0}, {%r0}, {%r0}, {%r0};",
        "fence.acq_rel.cluster;",
        "mbarrier.try_wait.shared.b64 %p0, [%r0], %rd0;",
        "elect.sync %r0|%p0, -1;",
        "mapa.shared::cluster.u32 %r0, %r1, 0;",
        "atom.shared.add.relaxed.cluster.u32 %r0, [%r1], 1;",
        "cp.async.bulk.commit_group;",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0], {%r0};",
        "tex.2d.v4.f32.f32 {%r0,%r1,%r2,%r3}, [%rd0, {%r1, %r2}], %r0;",
        "tex.2d.v4.f32.f32 {%r0,%r1,%r2,%r3}, [%rd0, %rd1, {%r1, %r2}];",
        "txq.filter_mode.b32 %r0, [%rd0];",
        "suq.memory_layout.b32 %r0, [%rd0];",
        "sured.p.min.2d.b64.trap [%rd0, {%r1, %r2}], %rd0;",
        "sured.b.xor.2d.b32.trap [%rd0, {%r1, %r2}], %r0;",
        "add.frobnicate.s32 %r0, %r1, %r2;",
        "wobble.u32 %r0;",
        "mov.u32 %r0, %clusterid.x;",
    ];
    for body in unsupported {
        match load(&format!("mov.u32 %r0, 1;\n{body}")) {
            Err(Error::Unsupported {
                at, instruction, ..
            }) => {
                assert_eq!(at.line, 8, "{body}");
                assert!(body.starts_with(&instruction), "{instruction}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn contradictions_name_the_line() {
    for body in [
        "add.s32 %r0, %r1;",
        "add.s32 %r0, %p0, 1;",
        "add.s32 %r0, %q, 1;",
        "bra nowhere;",
        "add.s64 %r0, %r1, %r2;",
        "x: x: ret;",
        "ld.shared.u32 %r0, [nothing];",
        "tex.2d.v4.f32.f32 {%r0,%r1,%r2,%r3}, [%rd0, {%r1}];",
        "tex.2d.v4.f32.f32 {%r0,%r1,%r2}, [%rd0, {%r1, %r2}];",
        "tex.2d.v4.f32.f32 {%r0,%r1,%r2,%r3}, [%r0, {%r1, %r2}];",
        "suld.b.2d.v2.b32.trap %r0, [%rd0, {%r1, %r2}];",
    ] {
        assert!(
            matches!(load(body), Err(Error::Invalid { at, .. }) if at.line == 7),
            "{body}: {:?}",
            load(body)
        );
    }
}

#[test]
fn broken_texts_and_greedy_ones_are_refused() {
    for body in [
        "add.s32 %r0 %r1;",
        "add.s32 %r0, [;",
        "{",
        "@;",
        ".reg .b32 %x<;",
    ] {
        assert!(
            matches!(load(body), Err(Error::Syntax { .. })),
            "{body}: {:?}",
            load(body)
        );
    }
    for body in [
        ".reg .b32 %x<4000000000>;",
        ".local .b8 l[1000000];",
        ".shared .b8 s[240000];",
    ] {
        assert!(
            matches!(load(body), Err(Error::Limit { .. })),
            "{body}: {:?}",
            load(body)
        );
    }
}
