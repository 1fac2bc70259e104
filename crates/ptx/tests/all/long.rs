//! Long texts, which are loaded with instructions that cannot run here.

use crate::common::{Arg, Device};
use outboard_ptx::limits::{PTX_BYTES_MAX, PTX_WHOLE_BYTES_MAX};
use outboard_ptx::{Error, FaultKind, LaunchError, lower};

/// Lines 6, 8 and 16 have an instruction that this device does not know.
const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64\n
.func (.param .b32 r) known(.param .b32 a) { .reg .b32 %r; ld.param.b32 %r, [a]; add.u32 %r, %r, 1; st.param.b32 [r], %r; ret; }
.func (.param .b32 r) later(.param .b32 a) { .reg .b32 %r<9>; .reg .pred %p; setp.ne.u32 %p, 0, 0; @%p wobble.b32 %r1, %r2;
    ld.param.b32 %r1, [a]; call (r), known, (a);
    wobble.b32 %r2, %r1;
    st.param.b32 [r], %r2; ret; }
.visible .entry use(.param .u64 out, .param .u32 which) {
    .reg .b64 %rd; .reg .b32 %r<4>; .reg .pred %p; .param .b32 a; .param .b32 r;
    ld.param.u64 %rd, [out]; ld.param.u32 %r1, [which]; setp.ne.u32 %p, %r1, 0; st.param.b32 [a], 41;
    @%p bra other; call (r), known, (a); bra end;
    other: call (r), later, (a);
    end: ld.param.b32 %r2, [r]; st.global.u32 [%rd], %r2; ret; }
.visible .entry never(.param .u64 out, .param .u32 which) { .shared .b8 s[640]; wobble.b32 %r2, %r1; }
";

fn long(text: &str) -> String {
    let line = format!("// {}\n", "x".repeat(1020));
    text.to_owned() + &line.repeat(PTX_WHOLE_BYTES_MAX / line.len() + 1)
}

#[test]
fn a_kernel_ends_when_it_comes_to_an_instruction_that_cannot_run() {
    let device = Device::new(&long(TEXT));
    let out = device.alloc(64);
    let run = |kernel, which: i32| {
        let args = [Arg::Ptr(out), Arg::I32(which)];
        device.try_run(kernel, [1; 3], [32, 1, 1], 0, &args)
    };
    assert!(run("use", 0).is_ok());
    assert_eq!(device.download::<u32>(out, 1), [42]);
    for (kernel, which, line) in [("use", 1, 8), ("never", 0, 16)] {
        let Err(LaunchError::Fault(fault)) = run(kernel, which) else {
            panic!("{kernel} ran");
        };
        let FaultKind::Trap { reason } = &fault.kind else {
            panic!("{fault}");
        };
        let begins = format!("PTX line {line}, ");
        assert_eq!(fault.line, line);
        assert!(
            reason.starts_with(&begins) && reason.contains("wobble"),
            "{reason}"
        );
    }
    assert_eq!(device.module.kernel("never").unwrap().max_threads, None);
    // What runs is not harmed by what could not.
    assert!(run("use", 0).is_ok());
}

#[test]
fn other_errors_are_refused_when_the_text_is_loaded() {
    assert!(matches!(lower::check(TEXT), Err(Error::Unsupported { at, .. }) if at.line == 6));
    let undefined = long(&TEXT.replace("{ .reg .b32 %r<9>; .reg .pred %p; setp.ne.u32 %p, 0, 0; @%p wobble.b32 %r1, %r2;", ";").replace(
        "    ld.param.b32 %r1, [a]; call (r), known, (a);\n    wobble.b32 %r2, %r1;\n    st.param.b32 [r], %r2; ret; }\n",
        "",
    ));
    let refused = lower::check(&undefined).unwrap_err().to_string();
    assert!(refused.contains("external function `later`"), "{refused}");
    for (from, to) in [
        ("wobble.b32 %r2, %r1;", "wobble.b32 %r2 %r1;"),
        ("[a]; add", "[b]; add"),
    ] {
        let refused = lower::check(&long(&TEXT.replace(from, to)));
        let Err(Error::Syntax { at, .. } | Error::Invalid { at, .. }) = refused else {
            panic!("{to}: {refused:?}");
        };
        assert!(matches!(at.line, 5 | 8), "{at}");
    }
    let at_most = "\n".repeat(PTX_BYTES_MAX + 1);
    assert!(matches!(lower::check(&at_most), Err(Error::Limit { .. })));
}
