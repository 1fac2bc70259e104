//! Instructions that compilers seldom emit, at their edges. Expected values follow the PTX ISA's
//! pseudocode, by hand.

use crate::common::{check32, run_thread_for};

#[test]
fn halves_flushed_and_saturated() {
    // 0x0001 and 0x8001 are subnormal, 0x0400 is the smallest normal, 0x3c00 is 1, 0x3e00 is 1.5,
    // 0x7e00 is a NaN.
    check32(
        "mov.b16 %rs0, 0x0001; mov.b16 %rs1, 0x0400; mov.b16 %rs2, 0x3800; mov.b16 %rs3, 0x7e00; mov.b16 %rs4, 0x3c00;
         add.f16 %rs5, %rs0, %rs0; cvt.u32.u16 %r0, %rs5; add.ftz.f16 %rs5, %rs0, %rs0; cvt.u32.u16 %r1, %rs5;
         mul.f16 %rs5, %rs1, %rs2; cvt.u32.u16 %r2, %rs5; mul.ftz.f16 %rs5, %rs1, %rs2; cvt.u32.u16 %r3, %rs5;
         mov.b32 %r20, 0xbc003e00; mov.b32 %r21, 0x00003c00; add.sat.f16x2 %r4, %r20, %r21;
         fma.rn.sat.f16 %rs5, %rs3, %rs4, %rs4; cvt.u32.u16 %r5, %rs5;
         neg.ftz.f16 %rs5, %rs0; cvt.u32.u16 %r6, %rs5; max.ftz.f16 %rs5, %rs0, %rs0; cvt.u32.u16 %r7, %rs5;
         fma.rn.ftz.relu.f16 %rs5, %rs1, %rs2, %rs0; cvt.u32.u16 %r8, %rs5;",
        &[2, 0, 0x0200, 0, 0x3c00, 0, 0x8000, 0, 0],
    );
    check32(
        "mov.b32 %r20, 0x3c000001; mov.b32 %r21, 0x3c000000; setp.eq.u32 %p2, 0, 0;
         setp.eq.f16x2 %p0|%p1, %r20, %r21; selp.u32 %r0, 1, 0, %p0; selp.u32 %r1, 1, 0, %p1;
         setp.eq.ftz.and.f16x2 %p0|%p1, %r20, %r21, %p2; selp.u32 %r2, 1, 0, %p0; selp.u32 %r3, 1, 0, %p1;
         setp.eq.and.f16x2 %p0|%p1, %r20, %r21, !%p2; selp.u32 %r4, 1, 0, %p0; selp.u32 %r5, 1, 0, %p1;
         setp.eq.xor.f16x2 %p2|%p1, %r20, %r21, %p2; selp.u32 %r6, 1, 0, %p2; selp.u32 %r7, 1, 0, %p1;
         mov.b16 %rs0, 0x8001; mov.b16 %rs1, 0; set.eq.u32.f16 %r8, %rs0, %rs1; set.eq.ftz.u32.f16 %r9, %rs0, %rs1;
         set.eq.ftz.f16x2.f16x2 %r10, %r20, %r21;",
        &[0, 1, 1, 1, 0, 0, 1, 0, 0, u32::MAX, 0x3c00_3c00],
    );
    // -1e-40 is below zero; flushed, it is -0, which is not.
    check32(
        "mov.b32 %f0, 0x800116c2; slct.s32.f32 %r0, 1, 2, %f0; slct.ftz.s32.f32 %r1, 1, 2, %f0; slct.ftz.u64.f32 %rd0, 1, 2, %f0; cvt.u32.u64 %r2, %rd0;",
        &[2, 1, 1],
    );
}

#[test]
fn conversions_that_stay_finite() {
    check32(
        "mov.f32 %f0, 0f4E6E6B28; mov.f32 %f1, 0fFF800000; mov.f32 %f2, 0f7FC00000; mov.f32 %f3, 0f3F800000;
         cvt.rn.satfinite.f16.f32 %rs0, %f0; cvt.u32.u16 %r0, %rs0; cvt.rn.satfinite.f16.f32 %rs0, %f1; cvt.u32.u16 %r1, %rs0;
         cvt.rn.satfinite.f16.f32 %rs0, %f2; cvt.u32.u16 %r2, %rs0; cvt.rz.satfinite.bf16.f32 %rs0, %f1; cvt.u32.u16 %r3, %rs0;
         cvt.rn.satfinite.f16x2.f32 %r4, %f0, %f3; neg.f32 %f1, %f1; cvt.rna.satfinite.tf32.f32 %r5, %f1;
         cvt.pack.sat.s8.s32.b32 %r6, 300, -300, 0xaabb; cvt.pack.sat.u4.s32.b32 %r7, 20, -1, 0xabcdef; cvt.pack.sat.s16.s32 %r8, 70000, -70000;
         cvt.pack.sat.u8.s32.b32 %r9, 7, 8, 0; cvt.pack.sat.s2.s32.b32 %r10, 1, -2, 0x3;",
        &[
            0x7bff, 0xfbff, 0x7fff, 0xff7f, 0x7bff_3c00, 0x7f7f_e000, 0xaabb_7f80, 0xabcd_eff0, 0x7fff_8000, 0x0708, 0x36,
        ],
    );
}

#[test]
fn bits_by_number_and_tables_into_predicates() {
    check32(
        "fns.b32 %r0, 0x16, 0, 1; fns.b32 %r1, 0x16, 0, 2; fns.b32 %r2, 0x16, 0, 3; fns.b32 %r3, 0x16, 0, 4; fns.b32 %r4, 0x16, 4, -1;
         fns.b32 %r5, 0x16, 4, -2; fns.b32 %r6, 0x16, 2, 0; fns.b32 %r7, 0x16, 0, 0; fns.b32 %r8, 0x80000000, 31, 1; fns.b32 %r9, 1, 0, -2;",
        &[1, 2, 4, u32::MAX, 4, 2, 2, u32::MAX, 31, u32::MAX],
    );
    check32(
        "setp.eq.u32 %p1, 0, 1; mov.b32 %r20, 1; mov.b32 %r21, 2; mov.b32 %r22, 4;
         lop3.or.b32 %r0|%p0, %r20, %r21, %r22, 0x80, %p1; selp.u32 %r1, 1, 0, %p0; lop3.or.b32 _|%p0, %r20, %r21, %r22, 0x80, !%p1; selp.u32 %r2, 1, 0, %p0;
         lop3.and.b32 %r3|%p0, %r20, %r21, %r22, 0xfe, !%p1; selp.u32 %r4, 1, 0, %p0; lop3.and.b32 %r5|%p1, %r20, %r21, %r22, 0xfe, %p1; selp.u32 %r6, 1, 0, %p1;
         mad24.hi.sat.s32 %r7, 0x7fffff, 0x7fffff, 0x7fffffff; mad24.hi.sat.s32 %r8, 0x7fffff, 0x10000, -1;",
        &[0, 0, 1, 7, 1, 7, 0, 0x7fff_ffff, 0x007f_fffe],
    );
}

#[test]
fn video_of_one_part() {
    check32(
        "mov.b32 %r20, 0x180; mov.b32 %r21, 5; mov.b32 %r22, -1; mov.b32 %r23, 1; mov.b32 %r24, -5; mov.b32 %r25, 7; mov.b32 %r26, 0xaabbccdd;
         vadd.s32.s32.s32 %r0, %r20.b0, %r21; vadd.u32.u32.u32 %r1, %r22, %r23; vadd.u32.u32.u32.sat %r2, %r22, %r23; vadd.s32.u32.u32.sat %r3, %r22, %r23;
         vsub.u32.u32.u32.sat %r4, %r21, %r25; vabsdiff.u32.s32.s32 %r5, %r24, %r25; vabsdiff.u32.s32.s32.add %r6, %r24, %r25, %r21;
         vmin.s32.s32.s32.max %r7, %r24, %r25, %r22; mov.b32 %r27, 200; mov.b32 %r28, 100;
         vadd.u32.u32.u32.sat %r8.b1, %r27, %r28, %r26; vadd.u32.u32.u32 %r9.b1, %r27, %r28, %r26; vadd.s32.u32.u32.sat %r10.b1, %r28, %r28, %r26;
         vadd.u32.u32.u32 %r11.h1, %r26.h1, %r26.b0, %r26; vset.s32.u32.lt %r12, %r22, %r22; vset.u32.u32.gt.add %r13, %r25, %r21, %r21;
         vset.u32.u32.gt %r14.b3, %r25, %r21, %r26;",
        &[
            -123i32 as u32, 0, u32::MAX, 0x7fff_ffff, 0, 12, 17, u32::MAX, 0xaabb_ffdd, 0xaabb_2cdd, 0xaabb_7fdd, 0xab98_ccdd, 1, 6,
            0x01bb_ccdd,
        ],
    );
    check32(
        "mov.b32 %r20, 1; mov.b32 %r21, 40; mov.b32 %r22, 0x80000000; mov.b32 %r23, 3; mov.b32 %r24, 5; mov.b32 %r25, 7; mov.b32 %r26, -1; mov.b32 %r27, 256;
         vshl.u32.u32.u32.clamp %r0, %r20, %r21; vshl.u32.u32.u32.wrap %r1, %r20, %r21; vshl.u32.u32.u32.sat.clamp %r2, %r20, %r21;
         vshr.s32.s32.u32.clamp %r3, %r22, %r21; vshr.u32.u32.u32.wrap.add %r4, %r22, %r21, %r24;
         vmad.s32.s32.s32 %r5, %r26, %r24, %r25; vmad.s32.s32.s32 %r6, -%r23, %r24, %r25; vmad.s32.s32.s32 %r7, %r23, %r24, -%r25;
         vmad.u32.u32.u32.po %r8, %r23, %r24, %r25; vmad.u32.u32.u32.shr7 %r9, %r27, %r23, %r25; vmad.u32.u32.u32.sat %r10, %r26, %r23, %r25;
         vmad.s32.s32.s32.sat %r11, %r22, %r23, %r25; vmad.s32.s32.s32.shr15 %r12, %r22.h1, %r27, %r25;",
        &[
            0, 0x100, u32::MAX, u32::MAX, 0x0080_0005, 2, -8i32 as u32, 8, 23, 6, u32::MAX, 0x8000_0000, -256i32 as u32,
        ],
    );
}

#[test]
fn video_of_halves_and_bytes() {
    check32(
        "mov.b32 %r20, 0x0001ffff; mov.b32 %r21, 0x00020001; mov.b32 %r22, 10; mov.b32 %r23, 0x0003fffd; mov.b32 %r24, 0;
         vadd2.u32.u32.u32 %r0, %r20, %r21, %r24; vadd2.u32.u32.u32.sat %r1, %r20, %r21, %r24; vadd2.u32.u32.u32.add %r2, %r20, %r21, %r22;
         vavrg2.s32.s32.s32 %r3, %r23, %r24, %r24; mov.b32 %r25, 0x807f0500; mov.b32 %r26, 0x01ff0301; vsub4.s32.s32.s32.sat %r4, %r25, %r26, %r24;
         mov.b32 %r27, 0x01020304; mov.b32 %r28, 0x01ff03ff; vset4.u32.u32.eq %r5, %r27, %r28, %r24; vset4.u32.u32.eq.add %r6, %r27, %r28, %r22;
         mov.b32 %r29, 0x11223344; mov.b32 %r30, 0x44332211; mov.b32 %r31, 0xaabbccdd; vmax4.u32.u32.u32 %r7.b10, %r29, %r30, %r31;
         mov.b32 %r16, 0x00010002; mov.b32 %r17, 0x00100020; vadd2.u32.u32.u32 %r8, %r16.h01, %r17.h32, %r24;
         vmin2.s32.s32.s32 %r9, %r20, %r21, %r24; vabsdiff4.u32.u32.u32.add %r10, %r29, %r30, %r24; vadd4.u32.u32.u32 %r11, %r29.b7654, %r30.b3210, %r24;
         vset2.s32.s32.lt %r12, %r20, %r21, %r24; vavrg4.u32.u32.u32 %r13, %r29, %r30, %r24;",
        &[
            0x0003_0000, 0x0003_ffff, 10 + 0x10000 + 3, 0x0002_fffe, 0x807f_02ff, 0x0100_0100, 12, 0xaabb_3344, 0x0012_0021,
            0x0001_ffff, 2 * (0x33 + 0x11), 0x5555_5555, 0x0001_0001, 0x2b2b_2b2b,
        ],
    );
}

#[test]
fn special_registers_that_count_nothing() {
    check32(
        "mov.u32 %r0, 7; mov.u32 %r0, %pm3; mov.u64 %rd0, 7; mov.u64 %rd0, %pm7_64; cvt.u32.u64 %r1, %rd0; mov.u32 %r2, %reserved_smem_offset_end;
         mov.u64 %rd0, %current_graph_exec; cvt.u32.u64 %r3, %rd0; createpolicy.fractional.L2::evict_last.b64 %rd1, 0.5; createpolicy.cvt.L2.b64 %rd2, %rd1;
         setp.eq.u64 %p0, %rd1, %rd2; selp.u32 %r4, 1, 0, %p0;",
        &[0, 0, 0, 0, 1],
    );
}

#[test]
fn vector_registers_go_to_and_from_memory() {
    check32(
        ".local .align 16 .b8 l[16]; .reg .v4 .b32 v; .reg .v2 .f32 w;
         mov.b32 v.x, 1; mov.b32 v.y, 2; mov.b32 v.z, 3; mov.b32 v.w, 4; st.local.v4.b32 [l], v; ld.local.v2.f32 w, [l+8]; mov.b32 %r0, w.x; mov.b32 %r1, w.y;",
        &[3, 4],
    );
}

#[test]
fn pairs_of_16_bits() {
    // -1 and 2; -32768 and 32767; as unsigned numbers 65535, 2, 32768 and 32767.
    let body = "mov.b32 %r20, 0xffff0002; mov.b32 %r21, 0x80007fff; mov.b32 %r22, -5; mov.b32 %r23, 7;
         add.s16x2 %r0, %r20, %r21; add.u16x2 %r1, %r21, %r21; min.s16x2 %r2, %r20, %r21; min.u16x2 %r3, %r20, %r21;
         max.s16x2 %r4, %r20, %r21; max.u16x2 %r5, %r20, %r21; min.relu.s16x2 %r6, %r20, %r21; max.relu.s16x2 %r7, %r20, %r21;
         min.relu.s32 %r8, %r22, %r23; max.relu.s32 %r9, %r22, %r23; mov.b32 %r10, %r20; min.s16x2 %r10, %r10, %r21;";
    let expected = [
        0x7fff_8001,
        0x0000_fffe,
        0x8000_0002,
        0x8000_0002,
        0xffff_7fff,
        0xffff_7fff,
        0x0000_0002,
        0x0000_7fff,
        0,
        7,
        0x8000_0002,
    ];
    assert_eq!(run_thread_for("sm_90", body).0[..11], expected);
}
