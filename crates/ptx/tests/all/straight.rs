//! Random straight code. Its steps depend on each other, and must give what each gives alone. The
//! reference is a watched launch, whose instructions all take the general path.
use std::fmt::Write as _;

use crate::common::{Arg, Device, noise};
use outboard_ptx::check::{Checker, Checks};

const PROGRAMS: u64 = 300;
const INSTRUCTIONS: usize = 60;
const WORDS: usize = 512;

/// `%r0..3` and `%rd0..3` are addresses: spread over the threads, the same for all, by halves of a
/// warp, and irregular.
const START: &str = "
    ld.param.u64 %out, [out]; ld.param.u64 %rd0, [data]; add.u64 %rd0, %rd0, 256;
    mov.u32 %t, %tid.x; and.b32 %u, %t, 31;
    shl.b32 %u, %u, 2; mov.u32 %r4, words; add.u32 %r4, %r4, 256; add.u32 %r0, %r4, %u; add.u32 %r1, %r4, 64; and.b32 %r2, %u, 64; add.u32 %r2, %r2, %r4;
    mul.lo.u32 %r3, %u, 3; add.u32 %r3, %r3, %r4; setp.lt.u32 %p0, %t, 20; setp.ge.u32 %p1, %t, 0;
    cvt.u64.u32 %rd4, %u; add.u64 %rd3, %rd0, 128; add.u64 %rd1, %rd0, %rd4; and.b64 %rd2, %rd4, 64; add.u64 %rd2, %rd2, %rd0;
    ld.global.f32 %f0, [%rd1]; st.shared.f32 [%r0], %f0; st.shared.f32 [%r0+128], %f0; st.shared.f32 [%r0+256], %f0;
    st.shared.f32 [%r0+384], %f0; ld.global.f32 %f1, [%rd1+128]; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f40000000;
    bar.sync 0;
";

fn program(seed: u64) -> String {
    let mut next = noise(seed);
    let mut below = move |n: usize| (next() * n as f64) as usize;
    let mut body = String::new();
    for i in 0..INSTRUCTIONS {
        let [x, y, z, d, a, b] = [4, 4, 4, 4, 4, 4].map(&mut below);
        // Rarely out of bounds or misaligned, because the faults must be the same too.
        let mut offset = || match below(1500) {
            0 => 4096,
            1 => 2,
            _ => 4 * below(24),
        };
        let (m, n) = (offset(), offset());
        let guard = match below(12) {
            0 => "@%p0 ",
            1 => "@!%p0 ",
            _ => "",
        };
        let text = match below(12) {
            0..5 => format!(
                "ld.shared.f32 %f{x}, [%r{a}+{m}]; ld.shared.f32 %f{y}, [%r{b}+{n}]; fma.rn.f32 %f{d}, %f{x}, %f{y}, %f{z};"
            ),
            5 => format!("ld.global.f32 %f{x}, [%rd{a}+{m}]; ld.global.f32 %f{y}, [%rd{a}+{n}];"),
            6 => format!("st.shared.f32 [%r{a}+{m}], %f{x};"),
            7 => format!("st.global.f32 [%rd{a}+{m}], %f{x};"),
            8 => format!("add.u32 %r{a}, %r{a}, 4; add.u32 %r{b}, %r{b}, -4;"),
            9 => format!("mov.u64 %rd4, %rd{a}; mov.u64 %rd{a}, %rd{b}; mov.u64 %rd{b}, %rd4;"),
            10 => format!(
                "@%p{} bra L{i}; add.f32 %f{d}, %f{d}, %f{x}; L{i}:",
                below(2)
            ),
            _ => format!(
                "shfl.sync.{}.b32 %f{d}|%p2, %f{x}, {}, {}, -1; @%p2 add.f32 %f{d}, %f{d}, %f{y}; ld.shared.b32 %t, [%r{a}]; and.b32 %t, %t, 124; add.u32 %r{b}, %r4, %t;",
                ["up", "down", "bfly", "idx"][below(4)],
                below(32),
                [0, 31, 0x1c1f, 0x1800, 7][below(5)]
            ),
        };
        let guard = if text.starts_with(['@', 's']) && !text.starts_with("st") {
            ""
        } else {
            guard
        };
        writeln!(body, "    {guard}{text}").unwrap();
    }
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u64 data)\n{{\n    \
         .shared .align 4 .b8 words[2048];\n    .reg .b32 %r<5>, %t, %u; .reg .b64 %rd<5>, %out; .reg .f32 %f<4>; .reg .pred %p<3>;\n\
         {START}{body}    mov.u32 %t, %tid.x; mul.wide.u32 %rd4, %t, 16; add.u64 %out, %out, %rd4;\n    \
         st.global.v4.f32 [%out], {{%f0, %f1, %f2, %f3}};\n    ret;\n}}\n"
    )
}

#[test]
fn steps_that_know_of_each_other_do_what_each_does_alone() {
    let checker = Checker::new(
        Checks {
            memory: true,
            ..Checks::default()
        },
        None,
    );
    let (mut faults, mut same) = (0, 0);
    for seed in 1..=PROGRAMS {
        let ptx = program(seed);
        for threads in [32, 64, 50] {
            let run = |watched: Option<&Checker>, baseline: bool| {
                let mut device = Device::new(&ptx);
                device.workers = 1;
                if baseline {
                    device.module.use_baseline();
                }
                let mut random = noise(seed);
                let data: Vec<f32> = (0..WORDS).map(|_| random() as f32 - 0.5).collect();
                let data = device.upload(&data);
                let out = device.alloc(64 * 16);
                let args = [Arg::Ptr(out), Arg::Ptr(data)];
                let result =
                    device.try_run_watched("k", [1; 3], [threads, 1, 1], 0, &args, watched);
                let result = result.map_err(|e| match e {
                    outboard_ptx::LaunchError::Fault(fault) => (fault.line, fault.thread),
                    other => panic!("{other}"),
                });
                let written = device.download::<u32>(out, 64 * 4);
                (result, written, device.download::<u32>(data, WORDS))
            };
            let reference = run(Some(&checker), false);
            for baseline in [false, true] {
                let got = run(None, baseline);
                assert!(
                    got == reference,
                    "seed {seed}, {threads} threads, baseline {baseline}: {:?} for {:?}\n{ptx}",
                    got.0,
                    reference.0,
                );
            }
            faults += usize::from(reference.0.is_err());
            same += usize::from(reference.0.is_ok());
        }
    }
    // Both outcomes occur often enough for the test to mean something.
    assert!(faults > 50 && same > 300, "{faults} faults, {same} without");
}
