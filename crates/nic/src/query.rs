//! Commands that ask the device: what it can do, and its address.

use std::ffi::{c_int, c_void};

use outboard_verbs::abi::ibv_context;

use crate::{
    command::{OP_MOD, OPCODE, address, capabilities, opcode},
    devx::{lent, lent_to, say, unserved, wrong},
    host::{Refusal, gid},
    refused::set_errno,
    rings::ENTRIES_MAX,
};

/// Most bytes of an entry of a send queue, and of a receive.
const ENTRY_BYTES_MAX: u64 = 1024;
const RECEIVE_BYTES_MAX: u64 = 16;
const LOG_QUEUES_MAX: u64 = 16;
const LOG_ENTRIES_MAX: u64 = ENTRIES_MAX.ilog2() as u64;
/// Two halves of 256 bytes, of which the first is used.
const LOG_DOORBELL_BYTES_MAX: u64 = 9;
/// Compare and swap, fetch and add, and both with masks.
const ATOMICS: u64 = 0xf;
/// Of words of 4 and 8 bytes.
const WORDS: u64 = 0xc;
const PORT_ETHERNET: u64 = 1;
const ADDRESSES: u64 = 1;
const ROCE_V2: u64 = 2;
const IPV4: u64 = 0;

/// Answers what the device can do. What is not said here is 0: it is not there.
fn query_capabilities(kind: u64, answer: &mut [u8]) -> Result<(), Refusal> {
    use capabilities::*;
    let fields: &[_] = match kind >> 1 {
        GENERAL => &[
            (LOG_PAIR_ENTRIES, LOG_ENTRIES_MAX),
            (LOG_PAIRS, LOG_QUEUES_MAX),
            (LOG_COMPLETIONS_ENTRIES, LOG_ENTRIES_MAX),
            (LOG_COMPLETIONS, LOG_QUEUES_MAX),
            (PORT_TYPE, PORT_ETHERNET),
            (PORTS, 1),
            (ROCE, 1),
            (ATOMIC, 1),
            (RELIABLE, 1),
            (COMPLETIONS_VERSION, 1),
            (LOG_DOORBELL_BYTES, LOG_DOORBELL_BYTES_MAX),
            (SEND_BYTES, ENTRY_BYTES_MAX),
            (RECEIVE_BYTES, RECEIVE_BYTES_MAX),
        ],
        // Of dynamic connections there are targets alone, to which nobody posts here.
        OF_ATOMICS => &[
            (ATOMIC_OPERATIONS, ATOMICS),
            (ATOMIC_SIZES, WORDS),
            (ATOMIC_SIZES_DYNAMIC, WORDS),
        ],
        OF_ROCE => &[(ROCE_ADDRESSES, ADDRESSES)],
        _ => return unserved(format!("capabilities {:#x} are not served", kind >> 1)),
    };
    answer.fill(0);
    for (field, value) in fields {
        field.set(answer, *value);
    }
    Ok(())
}

fn query_address(command: &[u8], answer: &mut [u8]) -> Result<(), Refusal> {
    if address::INDEX.of(command) >= ADDRESSES {
        return wrong("there is no such address");
    }
    let gid = gid().map_err(|number| (number, "there is no adapter".to_owned()))?;
    answer.fill(0);
    for (at, byte) in gid.into_iter().enumerate() {
        address::byte(at).set(answer, byte.into());
    }
    address::TYPE.set(answer, IPV4);
    address::VERSION.set(answer, ROCE_V2);
    Ok(())
}

/// # Safety
///
/// `input` and `output` are null or lent with their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_general_cmd(
    context: *mut ibv_context,
    input: *const c_void,
    input_bytes: usize,
    output: *mut c_void,
    output_bytes: usize,
) -> c_int {
    if context.is_null() {
        return set_errno(libc::EINVAL);
    }
    // SAFETY: lent by the caller.
    let (command, answer) = unsafe { (lent(input, input_bytes), lent_to(output, output_bytes)) };
    let answered = match OPCODE.of(command) {
        opcode::QUERY_HCA_CAP => query_capabilities(OP_MOD.of(command), answer),
        opcode::QUERY_ROCE_ADDRESS => query_address(command, answer),
        other => unserved(format!("command {other:#x} is not served")),
    };
    match answered {
        Ok(()) => 0,
        Err(refusal) => say("mlx5dv_devx_general_cmd", refusal),
    }
}
