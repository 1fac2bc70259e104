//! The carry flag between instructions of different kinds. It is one bit, as on GPUs: an addition
//! sets it if it carries, a subtraction if nothing is borrowed. `addc` and `madc` add it; `subc`
//! subtracts one more unless it is set. Expected values are computed by hand.

use crate::common::{check32, check64};

#[test]
fn a_subtraction_then_an_addition() {
    // 3 - 5 borrows, 5 - 5 and 5 - 3 do not.
    check32(
        "sub.cc.u32 %r31, 3, 5; addc.u32 %r0, 0, 0; sub.cc.u32 %r31, 5, 5; addc.u32 %r1, 0, 0;
         sub.cc.s32 %r31, 5, 3; addc.s32 %r2, 10, 20; sub.cc.u32 %r31, 0, 1; addc.u32 %r3, -1, 0;
         sub.cc.u32 %r31, 1, 0; addc.u32 %r4, -1, 0;",
        &[0, 1, 31, u32::MAX, 0],
    );
    // 64-bit flags read by 32-bit instructions, and the other way round.
    check32(
        "sub.cc.u64 %rd31, 3, 5; addc.u32 %r0, 7, 0; sub.cc.u64 %rd31, 5, 3; addc.u32 %r1, 7, 0;
         sub.cc.u32 %r31, 3, 5; addc.u64 %rd30, 7, 0; cvt.u32.u64 %r2, %rd30;
         sub.cc.u32 %r31, 5, 3; addc.u64 %rd30, 7, 0; cvt.u32.u64 %r3, %rd30;
         sub.cc.u64 %rd31, 0x100000000, 1; addc.u32 %r4, 7, 0; sub.cc.u64 %rd31, 1, 0x100000000; addc.u32 %r5, 7, 0;",
        &[7, 8, 7, 8, 8, 7],
    );
}

#[test]
fn an_addition_then_a_subtraction() {
    check32(
        "add.cc.u32 %r31, -1, 1; subc.u32 %r0, 10, 3; add.cc.u32 %r31, 1, 1; subc.u32 %r1, 10, 3;
         add.cc.s32 %r31, 0, 0; subc.s32 %r2, 0, 0; add.cc.u32 %r31, -1, -1; subc.s32 %r3, 0, 0;
         add.cc.u64 %rd31, 0xffffffff, 1; subc.u32 %r4, 10, 3; add.cc.u64 %rd31, -1, 1; subc.u32 %r5, 10, 3;",
        &[7, 6, u32::MAX, 0, 6, 7],
    );
    check64(
        "add.cc.u32 %r31, -1, 1; subc.u64 %rd0, 0, 1; add.cc.u32 %r31, 1, 1; subc.u64 %rd1, 0, 1;
         add.cc.u64 %rd31, -1, 1; subc.s64 %rd2, 0x100000000, 1; add.cc.u64 %rd31, 0, 1; subc.s64 %rd3, 0x100000000, 1;",
        &[u64::MAX, u64::MAX - 1, 0xffff_ffff, 0xffff_fffe],
    );
}

#[test]
fn what_reads_the_flag_and_writes_it() {
    // In each pair the first leaves the flag that the second reads: addc.cc for subc, subc.cc for
    // addc.
    check32(
        "sub.cc.u32 %r31, 5, 3; addc.cc.u32 %r0, -1, 0; subc.u32 %r1, 10, 3;
         sub.cc.u32 %r31, 3, 5; addc.cc.u32 %r2, -1, 0; subc.u32 %r3, 10, 3;
         add.cc.u32 %r31, -1, 1; subc.cc.u32 %r4, 5, 5; addc.u32 %r5, 10, 3;
         add.cc.u32 %r31, 1, 1; subc.cc.u32 %r6, 5, 5; addc.u32 %r7, 10, 3;
         add.cc.u32 %r31, 1, 1; subc.cc.u32 %r8, 6, 5; addc.cc.u32 %r9, 10, 3; subc.cc.u32 %r10, 0, 0; addc.u32 %r11, 0, 0;",
        &[0, 7, u32::MAX, 6, 0, 14, u32::MAX, 13, 0, 14, u32::MAX, 0],
    );
    check64(
        "sub.cc.u64 %rd31, 5, 3; addc.cc.u64 %rd0, -1, 0; subc.u64 %rd1, 10, 3;
         add.cc.u64 %rd31, 1, 1; subc.cc.u64 %rd2, 5, 5; addc.u64 %rd3, 10, 3;",
        &[0, 7, u64::MAX, 13],
    );
}

#[test]
fn multiplications_add() {
    // 0x10000 * 0xffff + 0x10000 is 2^32, whose low word carries; the high word of 0x10000 *
    // 0x10000 is 1.
    check32(
        "mov.b32 %r20, 0x10000; mov.b32 %r21, 0xffff; mov.b32 %r22, 0xffffffff;
         sub.cc.u32 %r31, 5, 3; madc.lo.u32 %r0, %r20, %r21, 1; sub.cc.u32 %r31, 3, 5; madc.lo.u32 %r1, %r20, %r21, 1;
         sub.cc.u32 %r31, 5, 3; madc.hi.u32 %r2, %r20, %r20, 5; sub.cc.u32 %r31, 3, 5; madc.hi.s32 %r3, %r20, %r20, 5;
         mad.lo.cc.u32 %r4, %r20, %r21, %r20; subc.u32 %r5, 10, 3; mad.lo.cc.u32 %r6, %r20, %r21, 1; subc.u32 %r7, 10, 3;
         mad.hi.cc.u32 %r8, %r20, %r20, %r22; subc.u32 %r9, 10, 3; mad.hi.cc.s32 %r10, %r20, %r20, 0; subc.u32 %r11, 10, 3;
         sub.cc.u32 %r31, 5, 3; madc.lo.cc.u32 %r12, %r22, 1, 0; subc.u32 %r13, 10, 3;
         sub.cc.u32 %r31, 3, 5; madc.lo.cc.u32 %r14, %r22, 1, 0; subc.u32 %r15, 10, 3;",
        &[
            0xffff_0002, 0xffff_0001, 7, 6, 0, 7, 0xffff_0001, 6, 0, 7, 1, 6, 0, 7, u32::MAX, 6,
        ],
    );
    check64(
        "mov.b64 %rd20, 0x100000000;
         sub.cc.u64 %rd31, 5, 3; madc.hi.u64 %rd0, %rd20, %rd20, 5; sub.cc.u64 %rd31, 3, 5; madc.lo.u64 %rd1, %rd20, 2, 5;
         mad.hi.cc.u64 %rd2, %rd20, %rd20, -1; subc.u64 %rd3, 10, 3; mad.lo.cc.s64 %rd4, %rd20, 2, 5; subc.s64 %rd5, 10, 3;",
        &[7, 0x2_0000_0005, 0, 7, 0x2_0000_0005, 6],
    );
}

/// Other instructions, and instructions skipped by a guard, leave the flag unchanged.
#[test]
fn what_leaves_the_flag_alone() {
    check32(
        "setp.eq.u32 %p0, 0, 1; sub.cc.u32 %r31, 3, 5; add.u32 %r30, -1, 1; sub.u32 %r30, 5, 3; setp.lt.u32 %p1, 0, 1; mul.wide.u32 %rd30, %r31, %r31;
         @%p0 add.cc.u32 %r30, -1, 1; addc.u32 %r0, 0, 0; addc.u32 %r1, 0, 0; subc.u32 %r2, 10, 3;
         sub.cc.u32 %r31, 5, 3; subc.u32 %r3, 3, 5; @!%p0 addc.u32 %r4, 0, 0; @%p0 sub.cc.u32 %r30, 3, 5; addc.u32 %r5, 0, 0;
         vadd.u32.u32.u32 %r30, %r31, %r31; addc.u32 %r6, 0, 0;",
        &[0, 0, 6, u32::MAX - 1, 1, 1, 1],
    );
}
