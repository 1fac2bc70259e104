//! Tables that the host and the kernel have in common. `device/tables.h` says the same in C++, and
//! is made from what is declared here.

use std::{ptr, slice};

/// Queue pairs, completion queues and registrations of an adapter.
pub(super) const PAIRS_MAX: usize = 256;
pub(super) const COMPLETIONS_MAX: usize = 512;
pub(super) const KEYS_MAX: usize = 1024;

/// Structs of integers without padding: any bytes are one.
pub(super) trait Plain: Copy + Default {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ident,)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default)]
            #[repr(C)]
            pub(super) struct $name { $(pub(super) $field: $type,)+ }

            impl Plain for $name {
                fn bytes(&self) -> &[u8] {
                    // SAFETY: integers without padding, as is asserted below.
                    unsafe { slice::from_raw_parts(ptr::from_ref(self).cast(), size_of::<$name>()) }
                }

                fn bytes_mut(&mut self) -> &mut [u8] {
                    // SAFETY: integers without padding, of which any bytes are one.
                    unsafe { slice::from_raw_parts_mut(ptr::from_mut(self).cast(), size_of::<$name>()) }
                }
            }

            // No padding, and whole words of 16 bytes, which a block of threads copies.
            const _: () = assert!(size_of::<$name>() == $(size_of::<$type>() +)+ 0);
            const _: () = assert!(size_of::<$name>().is_multiple_of(16));
        )+

        #[cfg(test)]
        const STRUCTS: &[(&str, usize, &[(&str, &str)])] = &[
            $((stringify!($name), size_of::<$name>(), &[$((stringify!($field), stringify!($type))),+]),)+
        ];
    };
}

macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$meta])* pub(super) const $name: u32 = $value as u32;)+

        #[cfg(test)]
        const NUMBERS: &[(&str, u32)] = &[$((stringify!($name), $name),)+];
    };
}

tables! {
    /// Begins the tables. A new generation says that the host has changed something.
    Head {
        generation: u64,
        pair_count: u32,
        completion_count: u32,
        key_count: u32,
        qpn_first: u32,
        reserved: u64,
    }
    /// A queue pair, as far as it is served. Of no queue pair the number is 0.
    Pair {
        ring: u64,
        record: u64,
        doorbell: u64,
        receives: u64,
        doorbell_seen: u64,
        resume_at_ns: u64,
        progress_at_ns: u64,
        timeout_ns: u64,
        not_ready_ns: u64,
        sequence: u64,
        expected: u64,
        succeeded: u64,
        flushed: u64,
        retries: u64,
        foreign_doorbells: u64,
        qpn: u32,
        domain: u32,
        epoch: u32,
        state: u32,
        peer_qpn: u32,
        peer_epoch: u32,
        flags: u32,
        access: u32,
        send_completions: u32,
        receive_completions: u32,
        log_blocks: u32,
        log_receives: u32,
        count_max: u32,
        not_ready_count_max: u32,
        timeouts: u32,
        not_ready: u32,
        consumer: u32,
        target: u32,
        rung: u32,
        receives_consumer: u32,
        failure: u32,
        group: u32,
    }
    /// A completion queue; of none the flags are 0.
    Completions {
        entries: u64,
        record: u64,
        produced: u64,
        log_entries: u32,
        flags: u32,
        group: u32,
        reserved: u32,
        padding: u64,
    }
    /// Memory from an address until another, which a key opens; of none the key is 0.
    Key {
        from: u64,
        until: u64,
        key: u32,
        domain: u32,
        access: u32,
        reserved: u32,
    }
}

numbers! {
    #[allow(dead_code, reason = "of zeroed tables")]
    STATE_RESET = 0;
    STATE_READY = 1;
    STATE_ERROR = 2;
    /// The entry at the front was sent to a peer that has not answered.
    PAIR_WAITS = 1;
    /// The entry at the front was looked at.
    PAIR_BEGUN = 2;
    PAIR_UNREACHABLE = 4;
    PAIR_UNRELIABLE = 8;
    PAIR_SHARES_DOORBELL = 16;
    COMPLETIONS_THERE = 1;
    COMPLETIONS_COLLAPSED = 2;
    COMPLETIONS_HOLDS_ERROR = 4;
    #[allow(dead_code, reason = "of the kernel alone")]
    COMPLETIONS_OVERRUN = 8;
    /// Bit of `failure` beside syndrome and index.
    FAILED = 1 << 24;
    /// Blocks of a kernel, each of which serves one group.
    GROUPS_MAX = 8;
    PAIRS_AT = 64;
    COMPLETIONS_AT = PAIRS_AT as usize + PAIRS_MAX * size_of::<Pair>();
    KEYS_AT = COMPLETIONS_AT as usize + COMPLETIONS_MAX * size_of::<Completions>();
    TABLES_BYTES = KEYS_AT as usize + KEYS_MAX * size_of::<Key>();
}

/// `rung` of a queue pair whose record has all that its doorbell rang for.
pub(super) const NOTHING_RUNG: u32 = 0x10000;

const _: () = assert!(size_of::<Head>() <= PAIRS_AT as usize);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{env, fmt::Write as _, fs, path::Path};

    use super::*;

    fn header() -> String {
        let mut text = String::from(
            "// Tables of the adapter that a kernel is, made from crates/net/src/kernel/tables.rs by its test with\n\
             // OUTBOARD_WRITE_TABLES=1 in the environment.\n\
             #pragma once\n\n#include <stdint.h>\n\n\
             namespace outboard {\nnamespace net {\nnamespace adapter {\n\n",
        );
        for (name, value) in NUMBERS {
            writeln!(text, "constexpr uint32_t {name} = {value};").unwrap();
        }
        for (name, bytes, fields) in STRUCTS {
            write!(text, "\nstruct {name} {{\n").unwrap();
            for (field, kind) in *fields {
                let bits = kind.strip_prefix('u').unwrap();
                writeln!(text, "    uint{bits}_t {field};").unwrap();
            }
            text.push_str("};\n");
            writeln!(
                text,
                "static_assert(sizeof({name}) == {bytes}, \"{name}\");"
            )
            .unwrap();
        }
        text + "\n} // namespace adapter\n} // namespace net\n} // namespace outboard\n"
    }

    #[test]
    fn the_header_says_what_is_declared_here() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("device/tables.h");
        if env::var_os("OUTBOARD_WRITE_TABLES").is_some() {
            fs::write(&path, header()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap_or_default(), header());
    }
}
