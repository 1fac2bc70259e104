//! Operands that compilers seldom write and NVIDIA's assembler accepts: vector registers and their
//! elements, a register plus a constant, shared variables of device functions. Expected values are
//! computed by hand.

use crate::common::{Arg, Device, check32, check64};
use outboard_ptx::{Error, lower};

#[test]
fn elements_of_vector_registers() {
    check32(
        ".reg .v4 .f32 v; .reg .v4 .u32 u; .reg .v2 .u64 w;
         mov.f32 v.x, 0f3F800000; mov.f32 v.y, 0f40000000; add.f32 v.z, v.x, v.y; fma.rn.f32 v.w, v.x, v.y, v.z;
         mov.b32 %r0, v.r; mov.b32 %r1, v.g; mov.b32 %r2, v.b; mov.b32 %r3, v.a;
         setp.lt.f32 %p0, v.x, v.y; @%p0 mov.u32 u.y, 7; add.u32 %r4, u.y, 1;
         mov.u64 w.x, 5; add.u64 w.y, w.x, 6; cvt.u32.u64 %r5, w.y;",
        &[
            0x3f80_0000,
            0x4000_0000,
            0x4040_0000,
            0x40a0_0000,
            8,
            11,
        ],
    );
    // Ranges of vector registers, like `%r<N>`, do not overlap.
    check32(
        ".reg .v2 .u32 v<3>; mov.u32 v0.x, 1; mov.u32 v0.y, 2; mov.u32 v1.x, 3; mov.u32 v1.y, 4; mov.u32 v2.x, 5; mov.u32 v2.y, 6;
         mov.u32 %r0, v0.x; mov.u32 %r1, v0.y; mov.u32 %r2, v1.x; mov.u32 %r3, v1.y; mov.u32 %r4, v2.x; mov.u32 %r5, v2.y;
         mov.v2.u32 v0, v2; mov.u32 %r6, v0.y; mov.u32 %r7, v1.x;",
        &[1, 2, 3, 4, 5, 6, 6, 3],
    );
}

#[test]
fn vectors_are_moved_whole() {
    check32(
        ".reg .v4 .f32 v, w; mov.v4.f32 v, {0f3F800000, 0f40000000, 0f40400000, 0f40800000}; mov.v4.f32 w, v; mov.v4.f32 {%f0, %f1, %f2, %f3}, w;
         mov.b32 %r0, %f0; mov.b32 %r1, %f1; mov.b32 %r2, %f2; mov.b32 %r3, %f3;
         mov.u32 %r4, 4; mov.u32 %r5, 5; mov.v2.u32 {%r4, %r5}, {%r5, %r4};
         mov.u32 %r6, 6; mov.u32 %r7, 7; mov.v2.u32 {_, %r6}, {%r6, %r7};
         .reg .v2 .u16 h; mov.u16 %rs0, 8; mov.v2.u16 h, {%rs0, 9}; cvt.u32.u16 %r8, h.x; cvt.u32.u16 %r9, h.y;",
        &[
            0x3f80_0000,
            0x4000_0000,
            0x4040_0000,
            0x4080_0000,
            5,
            4,
            7,
            7,
            8,
            9,
        ],
    );
    check64(
        ".reg .v2 .u64 w; mov.v2.u64 w, {3, 4}; mov.u64 %rd0, w.y; mov.v2.b64 {%rd1, %rd2}, {w.y, w.x};",
        &[4, 4, 3],
    );
}

/// The element at the lowest place is the first.
#[test]
fn vectors_are_packed_and_unpacked() {
    check32(
        ".reg .v2 .u16 h; .reg .v4 .b8 c; .reg .v4 .u16 q; .reg .v2 .f32 w; mov.b32 %r20, 0x12345678; mov.b64 %rd20, 0x1122334455667788;
         mov.b32 h, %r20; cvt.u32.u16 %r0, h.x; cvt.u32.u16 %r1, h.y; mov.u16 h.x, 1; mov.b32 %r2, h;
         mov.b64 q, %rd20; cvt.u32.u16 %r3, q.x; cvt.u32.u16 %r4, q.w; mov.b64 %rd21, q; cvt.u32.u64 %r5, %rd21;
         mov.b64 w, %rd20; mov.b32 %r6, w.x; mov.b32 %r7, w.y; mov.b64 {w.x, w.y}, %rd20; mov.b64 %rd22, {w.y, w.x}; cvt.u32.u64 %r8, %rd22;
         mov.b32 c, %r20; mov.b32 %r9, c;",
        &[
            0x5678,
            0x1234,
            0x1234_0001,
            0x7788,
            0x1122,
            0x5566_7788,
            0x5566_7788,
            0x1122_3344,
            0x1122_3344,
            0x1234_5678,
        ],
    );
    check64(
        ".reg .b128 %q; .reg .v4 .b32 v; .reg .v2 .b64 w; mov.v4.b32 v, {1, 2, 3, 4}; mov.b128 %q, v; mov.b128 w, %q; mov.u64 %rd0, w.x; mov.u64 %rd1, w.y;
         mov.b128 %q, {w.y, w.x}; mov.b128 {%r0, %r1, %r2, %r3}, %q; cvt.u64.u32 %rd2, %r0; cvt.u64.u32 %rd3, %r3;",
        &[0x2_0000_0001, 0x4_0000_0003, 3, 2],
    );
}

#[test]
fn a_register_plus_a_constant_is_an_operand() {
    check32(
        "mov.u32 %r20, 10; mov.u32 %r21, 3; mov.u16 %rs0, 0xfffe; mov.u64 %rd20, 0xffffffff;
         add.u32 %r0, %r20, %r21+1; mov.u32 %r1, %r20+-1; mov.u32 %r20, %r20+0x10; mov.u32 %r2, %r20;
         setp.eq.s32 %p0, %r21+2, 5; selp.u32 %r3, %r21+4, 0, %p0; shl.b32 %r4, 1, %r21+1; mul.wide.u32 %rd21, %r21+1, %r21; cvt.u32.u64 %r5, %rd21;
         cvt.u32.u16 %r6, %rs0+3; add.u64 %rd22, %rd20+1, 0; shr.u64 %rd22, %rd22, 32; cvt.u32.u64 %r7, %rd22;
         .shared .align 8 .b8 before[8], there[16]; mov.u32 %r8, there; add.u32 %r9, 0, there+4; sub.u32 %r9, %r9, %r8;
         st.shared.u32 [there], %r21+5; ld.shared.u32 %r10, [there]; atom.shared.add.u32 %r11, [there], %r21+-4; ld.shared.u32 %r11, [there];",
        &[14, 9, 26, 7, 16, 12, 1, 1, 8, 4, 8, 7],
    );
}

fn text(before: &str, body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{before}\n.visible .entry k(.param .u64 out) {{\n\
         .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .pred %p<2>; ld.param.u64 %rd0, [out];\n{body}\nret;\n}}\n"
    )
}

/// A shared variable inside a device function is one variable per block, like those outside
/// functions.
#[test]
fn shared_variables_of_device_functions() {
    let functions = ".shared .u32 outer;
         .func add(.reg .b32 a) { .shared .align 16 .u32 sum[4]; .reg .b32 x; atom.shared.add.u32 x, [sum+4], a; atom.shared.add.u32 x, [outer], 1; ret; }
         .func (.reg .b32 r) other(.reg .b32 a) { .shared .u32 sum; st.shared.u32 [sum], a; ld.shared.u32 r, [sum]; ret; }
         .func (.reg .b32 r) get() { .reg .b32 x; call add, (100); ld.shared.u32 r, [outer]; ret; }";
    // Each function's variable has its own memory, apart from the kernel's; a block finds what its
    // threads left.
    let body = ".shared .u32 own; mov.u32 %r1, %tid.x; setp.ne.u32 %p0, %r1, 0; @%p0 bra meet; st.shared.u32 [own], 5; st.shared.u32 [outer], 0;
         meet: bar.sync 0; call add, (%r1); bar.sync 0; @%p0 ret; call (%r2), other, (77); call (%r3), get, (); ld.shared.u32 %r4, [own];
         mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd1, %r5, 16; add.u64 %rd0, %rd0, %rd1; st.global.v4.u32 [%rd0], {%r2, %r3, %r4, %r5};";
    let device = Device::new(&text(functions, body));
    let kernel = device.module.kernel("k").unwrap();
    // Offsets: 4 bytes of `outer`, 16 at 16, 4 at 32, 4 of `own`.
    assert_eq!(kernel.shared_bytes, 40);
    let out = device.alloc(64);
    device.run("k", 2, 64, &[Arg::Ptr(out)]);
    assert_eq!(device.download::<u32>(out, 8), [77, 65, 5, 0, 77, 65, 5, 1]);
    // The sum is that of one block only.
    let sum = ".func (.reg .b32 r) sum(.reg .b32 a) { .shared .u32 sum; .reg .b32 x; st.shared.u32 [sum], 0; bar.sync 0;
         atom.shared.add.u32 x, [sum], a; bar.sync 0; ld.shared.u32 r, [sum]; ret; }";
    let body = "mov.u32 %r1, %tid.x; call (%r2), sum, (%r1); mul.wide.u32 %rd1, %r1, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r2;";
    let device = Device::new(&text(sum, body));
    let out = device.alloc(256);
    device.run("k", 1, 64, &[Arg::Ptr(out)]);
    assert_eq!(device.download::<u32>(out, 64), [2016; 64]);
}

/// NVIDIA's assembler refuses these as well.
#[test]
fn what_is_no_operand_is_refused() {
    for body in [
        ".reg .v4 .b64 v;",
        ".reg .v4 .pred v;",
        ".reg .v8 .b32 v;",
        ".reg .v2 .b128 v;",
        ".reg .b32 v[4];",
        ".reg .v2 .u32 v; mov.u32 %r0, v.z;",
        ".reg .v2 .u32 v; mov.u32 %r0, v.x.x;",
        ".reg .v2 .u32 v; mov.u32 %r0, v;",
        ".reg .v2 .u32 v; .reg .v4 .u32 w; mov.v2.u32 v, w;",
        "mov.v4.u64 {%rd0, %rd1, %rd2, %rd3}, {%rd0, %rd1, %rd2, %rd3};",
        "mov.v2.u32 {%r0, %r1}, %rd0;",
        "mov.u32 %r0, %tid.x+1;",
    ] {
        let checked = lower::check(&text("", body));
        assert!(checked.is_err(), "{body}");
    }
    // NVIDIA's assembler accepts these, and PTX does not define them.
    for body in ["add.f32 %f0, %f1, %f2+1;", "mov.pred %p0, %p1+1;"] {
        let checked = lower::check(&text("", body));
        assert!(matches!(checked, Err(Error::Invalid { .. })), "{body}");
    }
    // Names may be as long as the text.
    let dots = format!("mov.u32 %r0, v{};", ".x".repeat(500_000));
    assert!(lower::check(&text("", &dots)).is_err());
}

#[test]
fn votes_and_shuffles_of_texts_before_sm_70_need_no_mask() {
    let text = ".version 6.5
.target sm_60
.address_size 64
.visible .func (.param .b32 sum) add_two (.param .b32 a, .param .b32 b)

.visible .func (.param .b32 sum) add_two (.param .b32 a, .param .b32 b)
{
    .reg .b32 %x<3>;
    ld.param.u32 %x0, [a]; ld.param.u32 %x1, [b]; add.u32 %x2, %x0, %x1;
    st.param.b32 [sum], %x2;
    ret;
}
.visible .entry k(.param .u64 out) {
    .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
    setp.gt.u32 %p0, %r0, 20;
    vote.ballot.b32 %r1, %p0;
    vote.any.pred %p1, %p0; vote.all.pred %p2, !%p0;
    selp.b32 %r2, 1, 0, %p1; selp.b32 %r3, 2, 0, %p2;
    shfl.down.b32 %r4|%p3, %r0, 1, 31;
    { .param .b32 p0; .param .b32 p1; .param .b32 p2;
      st.param.b32 [p0], %r1; st.param.b32 [p1], %r2;
      call.uni (p2), add_two, (p0, p1); ld.param.b32 %r1, [p2]; }
    add.u32 %r1, %r1, %r3;
    setp.lt.u32 %p3, %r0, 4;
    @%p3 vote.ballot.b32 %r4, %p1;
    xor.b32 %r1, %r1, %r4;
    st.global.u32 [%rd0], %r1;
    ret;
}";
    let device = Device::new(text);
    let out = device.alloc(32 * 4);
    device.run("k", 1, 32, &[Arg::Ptr(out)]);
    let expected: Vec<u32> = (0..32u32)
        .map(|lane| {
            let last = match lane {
                0..4 => 0xf,
                31 => 31,
                _ => lane + 1,
            };
            (0xffe0_0000 + 1) ^ last
        })
        .collect();
    assert_eq!(device.download::<u32>(out, 32), expected);
    let later = text.replace("sm_60", "sm_70");
    let memory = outboard_ptx::Memory::reserve(0x2e00_0000_0000, 1 << 30, 64 << 20).unwrap();
    let error = outboard_ptx::Module::load(&later, &memory).unwrap_err();
    assert!(error.to_string().contains("without .sync"), "{error}");
}
