//! Signals of a thread's own faults, with Linux's numbers for 64-bit x86 and Arm.

const SIGILL: i32 = 4;
const SIGTRAP: i32 = 5;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGSEGV: i32 = 11;
const SIGSYS: i32 = 31;

/// Signals that tell a thread of its own fault, or of a call that a sandbox forbids. No thread of a
/// library blocks them: if one is blocked, the kernel ends the process without a call of the
/// program's handler, which may write a report, or mend the memory.
pub const FAULTS: [i32; 6] = [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_systems() {
        let systems = [
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGSEGV,
            libc::SIGSYS,
            libc::SIGTRAP,
        ];
        assert_eq!(FAULTS, systems);
    }
}
