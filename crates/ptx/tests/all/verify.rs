//! Changed lowered programs are refused, or run without reaching past a row.

use crate::common::noise;
use outboard_ptx::fuzz::lowered;

const TEXTS: [&str; 6] = [
    include_str!("data/basics.ptx"),
    include_str!("data/warp.ptx"),
    include_str!("data/functions.ptx"),
    include_str!("data/half.ptx"),
    include_str!("data/mma.ptx"),
    include_str!("data/math.ptx"),
];
const TRIES: usize = 4_000;

#[test]
fn changed_programs_are_refused_or_run_inside_their_rows() {
    let mut random = noise(11);
    let mut byte = || (random() * 256.0) as u8;
    let mut passed = 0;
    for _ in 0..TRIES {
        let changes = usize::from(byte()) % 3;
        let data: Vec<u8> = (0..2 + 8 * changes).map(|_| byte()).collect();
        passed += usize::from(lowered(&TEXTS, &data));
    }
    // Unchanged programs pass, and of the changed ones some but not all.
    let share = passed as f64 / TRIES as f64;
    assert!((0.3..0.9).contains(&share), "{passed} of {TRIES} passed");
}
