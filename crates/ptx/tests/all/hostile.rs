//! Damaged PTX must come back as an error or as a module, never as a panic or a hang.

use crate::common::noise;
use outboard_ptx::fuzz::text as fuzz;

const CORPUS: [&str; 5] = [
    include_str!("data/basics.ptx"),
    include_str!("data/warp.ptx"),
    include_str!("data/functions.ptx"),
    include_str!("data/half.ptx"),
    include_str!("data/basics_debug.ptx"),
];

const ALPHABET: &[u8] = b" \n;,.{}[]()%@!0123456789abcxyz_$+-<>:\"=|";

#[test]
fn truncated_text() {
    for text in CORPUS {
        for end in (0..text.len()).step_by(97) {
            fuzz(&text.as_bytes()[..end]);
        }
    }
}

#[test]
fn mutated_text() {
    let mut random = noise(6);
    let mut pick = |n: usize| (random() * n as f64) as usize;
    for _ in 0..2_000 {
        let mut text = CORPUS[pick(CORPUS.len())].as_bytes().to_vec();
        for _ in 0..1 + pick(8) {
            let at = pick(text.len());
            match pick(4) {
                0 => text[at] = ALPHABET[pick(ALPHABET.len())],
                1 => drop(text.remove(at)),
                2 => {
                    // A piece from elsewhere.
                    let (from, len) = (pick(text.len()), pick(40));
                    let piece = text[from..(from + len).min(text.len())].to_vec();
                    text.splice(at..at, piece);
                }
                _ => {
                    let end = (at + pick(60)).min(text.len());
                    text.drain(at..end);
                }
            }
        }
        fuzz(&text);
    }
}

#[test]
fn greedy_text() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let body = |text: &str| format!("{head}.visible .entry k()\n{{\n{text}\n}}");
    for text in [
        "{".repeat(100_000),
        body(&"{".repeat(100_000)),
        body(".reg .b32 %r<4294967295>;"),
        body(&".reg .b64 %a<200000>;\n".repeat(2)),
        body(".local .b8 x[18446744073709551615];"),
        body(".shared .align 65536 .b8 x[4];"),
        format!("{head}.global .b8 x[9223372036854775807][9223372036854775807];"),
        format!(
            "{head}.global .b8 x[] = {}1{};",
            "{".repeat(10_000),
            "}".repeat(10_000)
        ),
        format!("{head}.global .align 65536 .b8 x[0], y[], z[1];"),
        body(&format!("bra {};", "x".repeat(1 << 20))),
        body(
            "add.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32.s32 %r0, 1, 2;",
        ),
        body("call (a), b, (c), d;"),
        body(&format!("mov.u32 {}, 1;", "{".repeat(1000))),
    ] {
        fuzz(text.as_bytes());
    }
}
