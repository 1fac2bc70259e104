//! Kernels that launch kernels: a child runs after its parent's blocks have ended, in order, tail
//! launches last.

use crate::common::{Arg, Device};

/// `append` writes a number at the position of a counter; `parent` launches it, and itself, through
/// `launch`.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2
(.param .b64 f, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2 (.param .b64 p, .param .b64 stream);
.extern .func (.param .b32 r) __cudaCDP2MemcpyAsync
(.param .b64 to, .param .b64 from, .param .b64 n, .param .b32 kind, .param .b64 stream);

.visible .entry append(.param .u64 log, .param .u32 number) {
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd0, [log]; ld.param.u32 %r0, [number];
    atom.global.add.u32 %r1, [%rd0], 1;
    mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1+4], %r0;
    ret;
}
.func (.param .b32 status) launch(.param .b64 kernel, .param .b32 blocks, .param .b64 log, .param .b32 number, .param .b64 stream) {
    .reg .b64 %rd<6>; .reg .b32 %r<4>; .reg .pred %p;
    ld.param.u64 %rd0, [kernel]; ld.param.u32 %r0, [blocks]; ld.param.u64 %rd1, [log];
    ld.param.u32 %r1, [number]; ld.param.u64 %rd2, [stream];
    mov.b32 %r3, 7;
    { .param .b64 f; .param .align 4 .b8 g[12]; .param .align 4 .b8 b[12]; .param .b32 s; .param .b64 r;
      st.param.b64 [f], %rd0;
      st.param.b32 [g], %r0; st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;
      st.param.b32 [b], 1; st.param.b32 [b+4], 1; st.param.b32 [b+8], 1;
      st.param.b32 [s], 0;
      call.uni (r), __cudaCDP2GetParameterBufferV2, (f, g, b, s);
      ld.param.b64 %rd3, [r]; }
    setp.eq.u64 %p, %rd3, 0;
    @%p bra done;
    st.u64 [%rd3], %rd1; st.u32 [%rd3+8], %r1;
    { .param .b64 q; .param .b64 t; .param .b32 r;
      st.param.b64 [q], %rd3; st.param.b64 [t], %rd2;
      call.uni (r), __cudaCDP2LaunchDeviceV2, (q, t);
      ld.param.b32 %r3, [r]; }
done:
    st.param.b32 [status], %r3;
    ret;
}
.visible .entry parent(.param .u64 log, .param .u32 level) {
    .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p;
    ld.param.u64 %rd0, [log]; ld.param.u32 %r0, [level];
    mov.u64 %rd1, append; mov.u64 %rd2, parent;
    mul.lo.u32 %r1, %r0, 100; add.u32 %r2, %r1, 9;
    { .param .b64 k; .param .b32 n; .param .b64 l; .param .b32 x; .param .b64 s; .param .b32 r;
      st.param.b64 [k], %rd1; st.param.b32 [n], 1; st.param.b64 [l], %rd0; st.param.b32 [x], %r2; st.param.b64 [s], 3;
      call.uni (r), launch, (k, n, l, x, s); }
    add.u32 %r2, %r1, 1;
    { .param .b64 k; .param .b32 n; .param .b64 l; .param .b32 x; .param .b64 s; .param .b32 r;
      st.param.b64 [k], %rd1; st.param.b32 [n], 2; st.param.b64 [l], %rd0; st.param.b32 [x], %r2; st.param.b64 [s], 0;
      call.uni (r), launch, (k, n, l, x, s); }
    setp.eq.u32 %p, %r0, 0;
    @%p bra last;
    sub.u32 %r2, %r0, 1;
    { .param .b64 k; .param .b32 n; .param .b64 l; .param .b32 x; .param .b64 s; .param .b32 r;
      st.param.b64 [k], %rd2; st.param.b32 [n], 1; st.param.b64 [l], %rd0; st.param.b32 [x], %r2; st.param.b64 [s], 4;
      call.uni (r), launch, (k, n, l, x, s); ld.param.b32 %r7, [r]; }
    st.global.u32 [%rd0+4092], %r7;
last:
    add.u32 %r2, %r1, 2;
    { .param .b64 k; .param .b32 n; .param .b64 l; .param .b32 x; .param .b64 s; .param .b32 r;
      st.param.b64 [k], %rd1; st.param.b32 [n], 1; st.param.b64 [l], %rd0; st.param.b32 [x], %r2; st.param.b64 [s], 0;
      call.uni (r), launch, (k, n, l, x, s); }
    ret;
}
.visible .entry wrong(.param .u64 log, .param .u64 kernel, .param .u32 blocks) {
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd0, [log]; ld.param.u64 %rd1, [kernel]; ld.param.u32 %r0, [blocks];
    { .param .b64 k; .param .b32 n; .param .b64 l; .param .b32 x; .param .b64 s; .param .b32 r;
      st.param.b64 [k], %rd1; st.param.b32 [n], %r0; st.param.b64 [l], %rd0; st.param.b32 [x], 5; st.param.b64 [s], 0;
      call.uni (r), launch, (k, n, l, x, s); ld.param.b32 %r1, [r]; }
    st.global.u32 [%rd0+8], %r1;
    ret;
}
.visible .entry address(.param .u64 out) {
    .reg .b64 %rd<4>; .reg .b32 %r<2>;
    ld.param.u64 %rd0, [out]; mov.u64 %rd1, append; st.global.u64 [%rd0], %rd1;
    { .param .b64 to; .param .b64 from; .param .b64 n; .param .b32 kind; .param .b64 s; .param .b32 r;
      add.u64 %rd2, %rd0, 64;
      st.param.b64 [to], %rd2; st.param.b64 [from], %rd0; st.param.b64 [n], 8; st.param.b32 [kind], 3; st.param.b64 [s], 0;
      call.uni (r), __cudaCDP2MemcpyAsync, (to, from, n, kind, s); }
    ret;
}";

#[test]
fn children_run_in_order_and_tails_last() {
    let device = Device::new(PTX);
    let log = device.alloc(4096);
    device.run("parent", 1, 1, &[Arg::Ptr(log), Arg::I32(2)]);
    let words: Vec<u32> = device.download(log, 64);
    // A child, with its own children and tail launches, is done before what follows it.
    let expected = [201, 201, 101, 101, 1, 1, 2, 9, 102, 109, 202, 209];
    assert_eq!(words[0] as usize, expected.len());
    assert_eq!(words[1..=expected.len()], expected);
}

#[test]
fn launches_that_are_too_deep_or_wrong_say_so() {
    let device = Device::new(PTX);
    let log = device.alloc(4096);
    // Level 24 is the deepest: its launches are refused, and nothing faults.
    device.run("parent", 1, 1, &[Arg::Ptr(log), Arg::I32(30)]);
    let words: Vec<u32> = device.download(log, 1024);
    assert_eq!(words[0], 24 * 4);
    assert_eq!(words[1023], 65);

    let place = device.alloc(128);
    device.run("address", 1, 1, &[Arg::Ptr(place)]);
    let append: Vec<u64> = device.download(place, 9);
    assert_eq!(append[8], append[0], "a copy that a kernel asked for");
    let status = |kernel: u64, blocks: i32| {
        let log = device.alloc(64);
        let args = [Arg::Ptr(log), Arg::Ptr(kernel), Arg::I32(blocks)];
        device.run("wrong", 1, 1, &args);
        let words: Vec<u32> = device.download(log, 3);
        (words[0], words[2])
    };
    assert_eq!(status(append[0], 1), (1, 0));
    assert_eq!(status(append[0], 0), (0, 9));
    // There is no parameter buffer for an address that is no kernel.
    assert_eq!(status(12345, 1), (0, 7));
}
