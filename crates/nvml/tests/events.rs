//! Events of a lease, told by the file that its holder writes: GPUs that come, go and break.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    mem::zeroed,
    path::{Path, PathBuf},
    ptr::null_mut,
    time::Duration,
};

use common::{
    library::{Session, ask, device},
    turn,
};
use outboard_link::LinkKind;
use outboard_nvml::{entry::*, types::*};
use outboard_wire::lease::NEWS_VARIABLE;

/// UUIDs of the two devices of the tests' server.
const TALKATIVE: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";
const TACITURN: &str = "GPU-ffeeddcc-bbaa-9988-7766-554433221100";
const FOREVER: u32 = u32::MAX;
const CREATE: u32 = 0x0100_0010;
const REGISTER: u32 = 0x0100_0018;
const WAIT: u32 = 0x0100_0020;

/// A lease's file, which the environment names.
struct News {
    folder: tempfile::TempDir,
}

impl News {
    fn new() -> News {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: tests take turns, and the server's threads do not read the environment.
        unsafe { std::env::set_var(NEWS_VARIABLE, folder.path().join("news")) };
        News { folder }
    }

    fn write(&self, lines: &str) {
        write(self.folder.path(), lines);
    }
}

impl Drop for News {
    fn drop(&mut self) {
        // SAFETY: tests take turns, and the server's threads do not read the environment.
        unsafe { std::env::remove_var(NEWS_VARIABLE) };
    }
}

fn write(folder: &Path, lines: &str) {
    fs::write(folder.join("new"), lines).unwrap();
    fs::rename(folder.join("new"), folder.join("news")).unwrap();
}

/// Writes the file after a while, when a wait has begun.
fn write_later(news: &News, lines: String) -> std::thread::JoinHandle<()> {
    let folder: PathBuf = news.folder.path().into();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(120));
        write(&folder, &lines);
    })
}

fn devices_set() -> nvmlEventSet_t {
    let mut set = nvmlEventSet_t(0);
    // SAFETY: a variable for the answer.
    let created = unsafe { nvmlEventSetCreate(&mut set) };
    assert_eq!(created, nvmlReturn_t::SUCCESS);
    set
}

fn wait_for(set: nvmlEventSet_t, ms: u32) -> Result<(nvmlDevice_t, u64), nvmlReturn_t> {
    // SAFETY: all zeroes is an event, and there is room for it.
    unsafe {
        let mut data: nvmlEventData_t = zeroed();
        match nvmlEventSetWait_v2(set, &mut data, ms) {
            nvmlReturn_t::SUCCESS => {
                assert_eq!(data.v1.event_type, EVENT_XID);
                assert_eq!(data.gpu_instance_id, u32::MAX);
                assert_eq!(data.compute_instance_id, u32::MAX);
                Ok((data.v1.device, data.v1.event_data))
            }
            error => Err(error),
        }
    }
}

#[test]
fn a_lost_gpu_is_a_critical_error() {
    let _turn = turn();
    let news = News::new();
    news.write(&format!("1 lost {TALKATIVE} 0:5d:0 48\n"));
    let _session = Session::start(LinkKind::Shm);
    let (gpu, other) = (device(0), device(1));
    assert_eq!(ask(nvmlDeviceGetSupportedEventTypes, gpu), Ok(EVENT_XID));
    let set = devices_set();
    // SAFETY: handles that the library knows.
    unsafe {
        let register = |of, types| nvmlDeviceRegisterEvents(of, types, set);
        assert_eq!(register(gpu, EVENT_XID | 2), nvmlReturn_t::NOT_SUPPORTED);
        assert_eq!(register(gpu, EVENT_XID), nvmlReturn_t::SUCCESS);
    }
    assert_eq!(wait_for(set, 0), Err(nvmlReturn_t::TIMEOUT), "before");
    let lines =
        format!("2 lost {TACITURN} 0:9a:0 79\n3 attached x 0:1:0\n4 lost {TALKATIVE} 0:5d:0\n");
    let writing = write_later(&news, lines.clone());
    assert_eq!(wait_for(set, FOREVER), Ok((gpu, XID_UNKNOWN)));
    writing.join().unwrap();
    // SAFETY: handles that the library knows.
    let registered = unsafe { nvmlDeviceRegisterEvents(other, EVENT_XID, set) };
    assert_eq!(registered, nvmlReturn_t::SUCCESS);
    assert_eq!(wait_for(set, 0), Err(nvmlReturn_t::TIMEOUT));
    news.write(&format!(
        "{lines}5 lost {TACITURN} 0:9a:0 79\n6 lost {TALKATIVE} 0:5d:0 64\n"
    ));
    // The first version has no instances, and writes nothing in their place.
    // SAFETY: all zeroes is an event, and there is room for it.
    unsafe {
        let mut data: nvmlEventData_t = zeroed();
        let said = nvmlEventSetWait(set, (&raw mut data).cast(), 0);
        assert_eq!(said, nvmlReturn_t::SUCCESS);
        assert_eq!((data.v1.device, data.v1.event_data), (other, 79));
        assert_eq!(data.gpu_instance_id, 0);
    }
    assert_eq!(wait_for(set, FOREVER), Ok((gpu, 64)));
}

fn system_set() -> nvmlSystemEventSet_t {
    let mut request = nvmlSystemEventSetCreateRequest_t {
        version: CREATE,
        set: nvmlSystemEventSet_t(0),
    };
    // SAFETY: a record of the version said.
    let created = unsafe { nvmlSystemEventSetCreate(&mut request) };
    assert_eq!(created, nvmlReturn_t::SUCCESS);
    request.set
}

fn register(set: nvmlSystemEventSet_t, event_types: u64) -> nvmlReturn_t {
    let mut request = nvmlSystemRegisterEventRequest_t {
        version: REGISTER,
        event_types,
        set,
    };
    // SAFETY: a record of the version said.
    unsafe { nvmlSystemRegisterEvents(&mut request) }
}

/// Waits with room for two events. Returns the types and the ids of the GPUs.
fn wait_for_system(set: nvmlSystemEventSet_t, ms: u32) -> Result<Vec<(u64, u32)>, nvmlReturn_t> {
    // SAFETY: all zeroes is an event.
    let mut room: [nvmlSystemEventData_v1_t; 3] = unsafe { zeroed() };
    let mut request = nvmlSystemEventSetWaitRequest_t {
        version: WAIT,
        timeoutms: ms,
        set,
        data: room.as_mut_ptr(),
        data_size: 2,
        num_event: 7,
    };
    // SAFETY: a record of the version said, with room for the events.
    let said = unsafe { nvmlSystemEventSetWait(&mut request) };
    assert_eq!(room[2].event_type, 0, "written past the room");
    let given = room.iter().take(request.num_event as usize);
    let given = given.map(|event| (event.event_type, event.gpu_id));
    match said {
        nvmlReturn_t::SUCCESS => Ok(given.collect()),
        error => {
            assert_eq!(request.num_event, 0);
            Err(error)
        }
    }
}

#[test]
fn gpus_that_come_and_go_are_bound_and_unbound() {
    let _turn = turn();
    let news = News::new();
    let _session = Session::start(LinkKind::Tcp);
    let set = system_set();
    assert_eq!(register(set, 4), nvmlReturn_t::NOT_SUPPORTED);
    let both = SYSTEM_EVENT_BIND | SYSTEM_EVENT_UNBIND;
    assert_eq!(register(set, both), nvmlReturn_t::SUCCESS);
    assert_eq!(wait_for_system(set, 30), Err(nvmlReturn_t::TIMEOUT));
    let lines = "1 attached GPU-a 1:5d:3\n2 lost GPU-a 1:5d:3\n3 detached GPU-a 1:5d:3\n4 attached GPU-b 0:5e:0\n";
    let writing = write_later(&news, lines.into());
    let (came, went) = (SYSTEM_EVENT_BIND, SYSTEM_EVENT_UNBIND);
    let first = [(came, 0x0001_5d03), (went, 0x0001_5d03)];
    assert_eq!(wait_for_system(set, FOREVER), Ok(first.into()));
    writing.join().unwrap();
    assert_eq!(wait_for_system(set, 0), Ok(vec![(came, 0x5e00)]));
    assert_eq!(wait_for_system(set, 0), Err(nvmlReturn_t::TIMEOUT));
}

#[test]
fn requests_that_are_wrong_are_refused() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let (mut devices, system) = (devices_set(), system_set());
    // Without a lease nobody says which GPUs come and go.
    assert_eq!(register(system, 1), nvmlReturn_t::NOT_SUPPORTED);
    let mismatch = nvmlReturn_t::ARGUMENT_VERSION_MISMATCH;
    let invalid = nvmlReturn_t::INVALID_ARGUMENT;
    // A set of the other kind.
    assert_eq!(register(nvmlSystemEventSet_t(devices.0), 1), invalid);
    assert_eq!(wait_for(nvmlEventSet_t(system.0), 0), Err(invalid));
    let wrong = nvmlSystemEventSet_t(devices.0);
    assert_eq!(wait_for_system(wrong, FOREVER), Err(invalid));
    let mut free = nvmlSystemEventSetFreeRequest_t {
        version: CREATE,
        set: system,
    };
    // SAFETY: records of the versions said, or null.
    unsafe {
        assert_eq!(nvmlSystemEventSetCreate(null_mut()), invalid);
        assert_eq!(nvmlSystemEventSetFree(null_mut()), invalid);
        assert_eq!(nvmlSystemRegisterEvents(null_mut()), invalid);
        assert_eq!(nvmlSystemEventSetWait(null_mut()), invalid);
        free.version = CREATE + 1;
        assert_eq!(nvmlSystemEventSetFree(&mut free), mismatch);
        free.version = CREATE;
        assert_eq!(nvmlSystemEventSetFree(&mut free), nvmlReturn_t::SUCCESS);
        assert_eq!(nvmlSystemEventSetFree(&mut free), invalid);
        assert_eq!(nvmlEventSetFree(devices), nvmlReturn_t::SUCCESS);
        for _ in 0..64 {
            assert_eq!(nvmlEventSetCreate(&mut devices), nvmlReturn_t::SUCCESS);
        }
        let full = nvmlReturn_t::INSUFFICIENT_RESOURCES;
        assert_eq!(nvmlEventSetCreate(&mut devices), full);
    }
}
