//! Memory and events of one session in another.

use super::*;

const LEN: u64 = 4 * MIB;
const EVENT: u64 = 0x30;

fn export(
    client: &mut Client,
    va: u64,
) -> Result<messages::IpcExportMemoryReply<'static>, CUresult> {
    let message = messages::IpcExportMemory { va };
    client.with(|device, cx| device.ipc_export_memory(cx, &message).map_err(|f| f.status))
}

fn open(client: &mut Client, ticket: &[u8], va: u64, len: u64) -> Result<u32, CUresult> {
    let message = messages::IpcOpenMemory {
        ticket,
        va,
        len,
        own: 0,
    };
    client.with(|device, cx| {
        let opened = device.ipc_open_memory(cx, &message);
        opened.map(|reply| reply.device).map_err(|f| f.status)
    })
}

fn write(client: &mut Client, dst: u64, data: &[u8]) {
    client.done(Request::CopyIn(messages::CopyIn {
        dst,
        stream: 0,
        sync: 0,
        data: data.into(),
    }));
}

fn read(client: &mut Client, src: u64, len: usize) -> Vec<u8> {
    let mut copy = client.wait(Request::CopyOut(messages::CopyOut {
        src,
        len: len as u64,
        stream: 0,
    }));
    assert_eq!(copy.ready(), Ok(true));
    copy.data().expect("data").to_vec()
}

#[test]
fn two_sessions_see_the_same_memory() {
    let fake = Fake::build(&[]);
    let (mut one, mut other) = (Client::new(&fake), Client::new(&fake));
    let va = one.map(0, LEN);
    write(&mut one, va + 100, b"written by one");
    let exported = export(&mut one, va + 5000).expect("exported");
    assert_eq!((exported.base, exported.len), (va, LEN));
    let again = export(&mut one, va).expect("exported");
    assert_eq!(
        exported.ticket, again.ticket,
        "one piece of memory has one ticket"
    );

    let there = other.base + 6 * MIB;
    assert_eq!(open(&mut other, &exported.ticket, there, LEN), Ok(0));
    assert_eq!(read(&mut other, there + 100, 14), b"written by one");
    write(&mut other, there + MIB, b"written by the other");
    assert_eq!(read(&mut one, va + MIB, 20), b"written by the other");
    // The memory lasts as long as one session has it.
    one.done(Request::MemUnmap(messages::MemUnmap { va, len: LEN }));
    one.device.reap();
    assert_eq!(read(&mut other, there + 100, 14), b"written by one");
    drop((one, other));
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let fake = Fake::build(&[]);
    let (mut one, mut other) = (Client::new(&fake), Client::new(&fake));
    let va = one.map(0, LEN);
    let ticket = export(&mut one, va).expect("exported").ticket;
    let there = other.base;
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(
        open(&mut one, &ticket, va + LEN, LEN),
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        "by the process that made it"
    );
    assert_eq!(
        open(&mut other, &ticket, there, LEN / 2),
        invalid,
        "another length"
    );
    assert_eq!(
        open(&mut other, &ticket, 0x1000, LEN),
        invalid,
        "not in the window"
    );
    assert_eq!(
        open(&mut other, &ticket[1..], there, LEN),
        invalid,
        "half a ticket"
    );
    assert_eq!(export(&mut one, va + LEN).err(), invalid.err(), "no memory");
    assert_eq!(open(&mut other, &ticket, there, LEN), Ok(0));
    assert_eq!(
        export(&mut other, there).err(),
        invalid.err(),
        "memory that is not its own"
    );
    one.done(Request::MemUnmap(messages::MemUnmap { va, len: LEN }));
    assert_eq!(
        open(&mut other, &ticket, there + LEN, LEN),
        invalid,
        "freed"
    );
}

#[test]
fn an_event_is_opened_by_another_session() {
    let fake = Fake::build(&[]);
    let (mut one, mut other) = (Client::new(&fake), Client::new(&fake));
    one.done(Request::EventCreate(messages::EventCreate {
        event: EVENT,
        flags: 6,
    }));
    let message = messages::IpcExportEvent { event: EVENT };
    let ticket = one
        .with(|device, cx| device.ipc_export_event(cx, &message))
        .expect("exported")
        .ticket;
    other.done(Request::IpcOpenEvent(messages::IpcOpenEvent {
        event: EVENT + 1,
        ticket: &ticket,
    }));
    other.done(Request::StreamWaitEvent(messages::StreamWaitEvent {
        stream: 0,
        event: EVENT + 1,
        flags: 0,
    }));
    one.done(Request::EventDestroy(messages::EventDestroy {
        event: EVENT,
    }));
    let status = other.refused(Request::IpcOpenEvent(messages::IpcOpenEvent {
        event: EVENT + 2,
        ticket: &ticket,
    }));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE, "destroyed");
    drop((one, other));
    assert_eq!(fake.ask("fake_live", 0), 0);
}
