//! Barriers in shared memory and copies to it.

use crate::common::{Arg, Device, check32};

fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .b64 %rd<16>; .reg .b32 %r<32>; .reg .pred %p<8>;\n.shared .align 16 .b8 data[1024]; .shared .align 8 .b64 bar;\n\
         ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"
    )
}

#[test]
fn an_mbarrier_counts_arrivals_by_phase() {
    check32(
        ".shared .align 8 .b64 bar;
         mbarrier.init.shared.b64 [bar], 5; mbarrier.arrive.shared.b64 %rd0, [bar]; mbarrier.pending_count.b64 %r0, %rd0;
         mbarrier.arrive.shared.b64 %rd1, [bar]; mbarrier.pending_count.b64 %r1, %rd1; mbarrier.arrive.noComplete.shared.b64 %rd2, [bar], 2;
         mbarrier.pending_count.b64 %r2, %rd2; mbarrier.test_wait.shared.b64 %p0, [bar], %rd0; selp.u32 %r3, 1, 0, %p0;
         mbarrier.test_wait.parity.shared.b64 %p0, [bar], 0; selp.u32 %r4, 1, 0, %p0; mbarrier.test_wait.parity.shared.b64 %p0, [bar], 1; selp.u32 %r5, 1, 0, %p0;
         mbarrier.arrive.shared.b64 %rd3, [bar];
         mbarrier.test_wait.shared.b64 %p0, [bar], %rd0; selp.u32 %r6, 1, 0, %p0; mbarrier.test_wait.parity.shared.b64 %p0, [bar], 0; selp.u32 %r7, 1, 0, %p0;
         mbarrier.test_wait.parity.shared.b64 %p0, [bar], 1; selp.u32 %r8, 1, 0, %p0;
         mbarrier.arrive_drop.shared.b64 %rd4, [bar]; mbarrier.pending_count.b64 %r9, %rd4; mbarrier.arrive.noComplete.shared.b64 %rd5, [bar], 4;
         mbarrier.arrive.shared.b64 %rd6, [bar]; mbarrier.pending_count.b64 %r10, %rd6; mbarrier.inval.shared.b64 [bar];",
        &[5, 4, 3, 0, 0, 1, 1, 1, 0, 5, 4],
    );
}

#[test]
fn threads_meet_at_an_mbarrier() {
    // Each of 128 threads writes a word, arrives, waits, and reads the word 64 further; then again,
    // by parity.
    let device = Device::new(&kernel(
        "setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [bar], 128; bar.sync 0;
         shl.b32 %r1, %r0, 2; mov.u32 %r2, data; add.u32 %r3, %r2, %r1; add.u32 %r4, %r0, 64; and.b32 %r4, %r4, 127; shl.b32 %r4, %r4, 2; add.u32 %r4, %r2, %r4;
         mul.wide.u32 %rd5, %r0, 8; add.s64 %rd1, %rd1, %rd5;
         mad.lo.u32 %r5, %r0, 3, 1; st.shared.u32 [%r3], %r5; mbarrier.arrive.shared.b64 %rd2, [bar];
         W1: mbarrier.test_wait.shared.b64 %p1, [bar], %rd2; @!%p1 bra W1;
         ld.shared.u32 %r6, [%r4]; st.global.u32 [%rd1], %r6; bar.sync 0;
         add.u32 %r5, %r5, 1000; st.shared.u32 [%r3], %r5; mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [bar];
         W2: mbarrier.test_wait.parity.acquire.cta.shared.b64 %p1, [bar], 1; @!%p1 bra W2;
         ld.shared.u32 %r6, [%r4]; st.global.u32 [%rd1+4], %r6;",
    ));
    let out = device.alloc(1024);
    device.run("k", 1, 128, &[Arg::Ptr(out), Arg::Ptr(out)]);
    let expected: Vec<u32> = (0..128u32)
        .flat_map(|t| [(t + 64) % 128 * 3 + 1, (t + 64) % 128 * 3 + 1001])
        .collect();
    assert_eq!(device.download::<u32>(out, 256), expected);
}

#[test]
fn copies_to_shared_memory_and_what_is_left_out() {
    // 32 lanes copy 16 bytes each: all, the first 6, none by size, none by predicate. Without
    // `.noinc` arrivals do not count.
    for (form, kept) in [
        ("cp.async.cg.shared.global [%r3], [%rd2], 16;", 16),
        (
            "cp.async.ca.shared.global.L2::128B [%r3], [%rd2], 16, %r10;",
            6,
        ),
        (
            "cp.async.cg.shared::cta.global.L2::cache_hint [%r3], [%rd2], 16, %r11, %rd7;",
            0,
        ),
        (
            "setp.eq.u32 %p0, 0, 0; cp.async.cg.shared.global [%r3], [%rd2], 16, %p0;",
            0,
        ),
        (
            "setp.eq.u32 %p0, 0, 0; cp.async.cg.shared.global [%r3], [%rd2], 16, !%p0;",
            16,
        ),
    ] {
        let device = Device::new(&kernel(&format!(
            "createpolicy.fractional.L2::evict_first.b64 %rd7; mov.u32 %r10, 6; mov.u32 %r11, 0;
             setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [bar], 32; bar.warp.sync -1;
             shl.b32 %r1, %r0, 4; mov.u32 %r2, data; add.u32 %r3, %r2, %r1; mul.wide.u32 %rd4, %r0, 16; add.s64 %rd2, %rd0, %rd4; add.s64 %rd3, %rd1, %rd4;
             st.shared.v2.u64 [%r3], {{-1, -1}}; {form} cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
             cp.async.mbarrier.arrive.shared.b64 [bar]; cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
             WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;
             ld.shared.v2.u64 {{%rd5, %rd6}}, [%r3]; st.global.v2.u64 [%rd3], {{%rd5, %rd6}};"
        )));
        let data: Vec<u8> = (0..512u32).map(|i| (i % 251 + 1) as u8).collect();
        let (input, out) = (device.upload(&data), device.alloc(512));
        device.run("k", 1, 32, &[Arg::Ptr(input), Arg::Ptr(out)]);
        let expected: Vec<u8> = (0..512)
            .map(|i| if i % 16 < kept { data[i] } else { 0 })
            .collect();
        assert_eq!(device.download::<u8>(out, 512), expected, "{form}");
    }
}

/// CUB's scans pass a value and its state from block to block as a vector. One block repeatedly
/// writes vectors of one number, another reads them.
#[test]
fn vectors_are_seen_whole_by_other_blocks() {
    for (vector, ty) in [
        ("v2.u32", "b32"),
        ("v4.u32", "b32"),
        ("v4.u16", "b16"),
        ("v2.u64", "b64"),
    ] {
        for (order, lanes) in [("relaxed.gpu", 32), ("relaxed.gpu", 20), ("volatile", 7)] {
            let n = if vector.starts_with("v4") { 4 } else { 2 };
            let names = |letter: &str| {
                (0..n)
                    .map(|i| format!("%{letter}{i}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let compare: String = (1..n)
                .map(|i| format!("setp.ne.{ty} %p1, %b0, %b{i}; @%p1 add.u32 %r4, %r4, 1;\n"))
                .collect();
            let device = Device::new(&kernel(&format!(
                ".reg .{ty} %b<4>, %a0; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd2, %rd2, %rd0;
                 setp.ge.u32 %p0, %r0, {lanes}; @%p0 exit; mov.u32 %r4, 0; mov.u32 %r5, 0; setp.eq.u32 %p2, %r1, 0; @!%p2 bra READ;
                 WRITE: add.u32 %r5, %r5, 1; cvt.u{bits}.u32 %a0, %r5;
                 st.{order}.global.{vector} [%rd2], {{{written}}}; setp.lt.u32 %p3, %r5, 40000; @%p3 bra WRITE; exit;
                 READ: add.u32 %r5, %r5, 1; ld.{order}.global.{vector} {{{read}}}, [%rd2];
                 {compare} setp.lt.u32 %p3, %r5, 40000; @%p3 bra READ;
                 mul.wide.u32 %rd3, %r0, 4; add.u64 %rd3, %rd3, %rd1; st.global.u32 [%rd3], %r4;",
                bits = &ty[1..],
                written = vec!["%a0"; n].join(", "),
                read = names("b"),
            )));
            let (cells, torn) = (device.alloc(512), device.alloc(128));
            device.run("k", 2, 32, &[Arg::Ptr(cells), Arg::Ptr(torn)]);
            assert_eq!(
                device.download::<u32>(torn, 32),
                [0; 32],
                "{order} {vector}, {lanes} lanes"
            );
        }
    }
}
