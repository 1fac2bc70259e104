//! Tests of the C interface over real links, against a server that answers.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    ffi::{CStr, c_void},
    mem::zeroed,
    ptr::{null, null_mut},
    time::{Duration, Instant},
};

use common::{Answer, library::*, turn, two_devices};
use outboard_link::LinkKind;
use outboard_nvml::{entry::*, types::*};

#[test]
fn what_the_server_says_arrives() {
    let _turn = turn();
    for kind in KINDS {
        let _session = Session::start(kind);
        let gpu = device(0);
        assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(123_456));
        assert_eq!(ask(nvmlDeviceGetTotalEnergyConsumption, gpu), Ok(1 << 40));
        assert_eq!(ask(nvmlDeviceGetArchitecture, gpu), Ok(9));
        assert_eq!(text(nvmlDeviceGetName, gpu, 96).unwrap(), "NVIDIA H200");
        // SAFETY: a record of integers and characters.
        let mut info: nvmlSystemDriverBranchInfo_t = unsafe { zeroed() };
        info.version = struct_version::<nvmlSystemDriverBranchInfo_t>(1);
        for (length, wanted) in [
            (7, nvmlReturn_t::INSUFFICIENT_SIZE),
            (80, nvmlReturn_t::SUCCESS),
        ] {
            // SAFETY: a record of this version.
            let status = unsafe { nvmlSystemGetDriverBranch(&mut info, length) };
            assert_eq!(status, wanted);
        }
        // SAFETY: the text that the call wrote, with its NUL.
        let branch = unsafe { CStr::from_ptr(info.branch.as_ptr()) };
        assert_eq!(branch, c"r581_42");
        let memory = ask(nvmlDeviceGetMemoryInfo, gpu).unwrap();
        assert_eq!(
            (memory.total, memory.free, memory.used),
            (150_000_000_000, 149_000_000_000, 1_000_000_000)
        );
        let rates = ask(nvmlDeviceGetUtilizationRates, gpu).unwrap();
        assert_eq!((rates.gpu, rates.memory), (42, 17));
        let pci = ask(nvmlDeviceGetPciInfo_v3, gpu).unwrap();
        assert_eq!((pci.legacy.bus, pci.pci_sub_system_id), (0x5d, 0x18be_10de));
        assert_eq!(
            // SAFETY: the library ends it with a NUL.
            unsafe { CStr::from_ptr(pci.bus_id.as_ptr()) },
            c"00000000:5D:00.0"
        );
        assert_eq!(
            // SAFETY: the library ends it with a NUL.
            unsafe { CStr::from_ptr(pci.legacy.bus_id.as_ptr()) },
            c"0000:5D:00.0"
        );
    }
}

#[test]
fn how_devices_reach_each_other_is_what_the_server_says() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let (first, second) = (device(0), device(1));
    let status = |a, b, index| {
        let mut status = 77;
        // SAFETY: a variable for the answer.
        match unsafe { nvmlDeviceGetP2PStatus(a, b, index, &mut status) } {
            nvmlReturn_t::SUCCESS => Ok(status),
            error => Err(error),
        }
    };
    assert_eq!(
        [0, 4, 5, 6, 100].map(|i| status(first, first, i)),
        [0, 5, 0, 0, 0].map(Ok)
    );
    assert_eq!(
        [0, 1, 2].map(|i| status(first, second, i)),
        [0, 1, 5].map(Ok)
    );
    assert_eq!(status(first, second, 3), Err(nvmlReturn_t::GPU_IS_LOST));
    let invalid = Err(nvmlReturn_t::INVALID_ARGUMENT);
    // The answer for the first invalid index holds for all.
    assert_eq!([5, 6, 100].map(|i| status(first, second, i)), [invalid; 3]);
    assert_eq!(status(second, first, 0), Err(nvmlReturn_t::NOT_SUPPORTED));
    assert_eq!(status(first, nvmlDevice_t(0), 0), invalid);
    // SAFETY: a null pointer is refused.
    let refused = unsafe { nvmlDeviceGetP2PStatus(first, first, 0, null_mut()) };
    assert_eq!(refused, nvmlReturn_t::INVALID_ARGUMENT);
    let mut level = 0;
    // SAFETY: a variable for the answer, as below.
    let found = unsafe { nvmlDeviceGetTopologyCommonAncestor(first, second, &mut level) };
    assert_eq!((found, level), (nvmlReturn_t::SUCCESS, 30));
    for (level, near) in [(10, 0), (30, 1), (50, 1)] {
        let (mut count, mut devices) = (4, [nvmlDevice_t(0); 4]);
        // SAFETY: as much room as `count` says.
        let found = unsafe {
            nvmlDeviceGetTopologyNearestGpus(first, level, &mut count, devices.as_mut_ptr())
        };
        assert_eq!((found, count), (nvmlReturn_t::SUCCESS, near));
        assert_eq!(devices[0] == second, near == 1);
    }
}

#[test]
fn links_and_affinities_arrive() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let state = |link| {
        let mut up = 77;
        // SAFETY: a variable for the answer.
        (unsafe { nvmlDeviceGetNvLinkState(gpu, link, &mut up) }, up)
    };
    assert_eq!(state(0), (nvmlReturn_t::SUCCESS, 1));
    assert_eq!(state(1), (nvmlReturn_t::SUCCESS, 0));
    assert_eq!(state(2), (nvmlReturn_t::INVALID_ARGUMENT, 77));
    let (mut can, mut info) = (0, nvmlGpuFabricInfo_v3(3));
    // SAFETY: a variable for each answer.
    unsafe {
        assert_eq!(
            nvmlDeviceGetNvLinkCapability(gpu, 0, 0, &mut can),
            nvmlReturn_t::SUCCESS
        );
        let beyond = nvmlDeviceGetNvLinkCapability(gpu, 0, 6, &mut can);
        assert_eq!(beyond, nvmlReturn_t::INVALID_ARGUMENT);
        let mut pci = zeroed::<nvmlPciInfo_t>();
        assert_eq!(
            nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, 0, &mut pci),
            nvmlReturn_t::SUCCESS
        );
        assert_eq!(pci.legacy.bus, 0x9a);
        let none = nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, 1, &mut pci);
        assert_eq!(none, nvmlReturn_t::NOT_SUPPORTED);
        let told = nvmlDeviceGetGpuFabricInfoV(gpu, (&raw mut info).cast());
        assert_eq!(told, nvmlReturn_t::SUCCESS);
        assert_eq!(
            (
                info.v2.v1.clique_id,
                info.v2.health_mask,
                info.health_summary
            ),
            (5, 77, 2)
        );
        info = nvmlGpuFabricInfo_v3(9);
        let wrong = nvmlDeviceGetGpuFabricInfoV(gpu, (&raw mut info).cast());
        assert_eq!(wrong, nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
        let mut set = [7; 3];
        assert_eq!(
            nvmlDeviceGetCpuAffinity(gpu, 3, set.as_mut_ptr()),
            nvmlReturn_t::SUCCESS
        );
        assert_eq!(set, [0xffff_ffff, 3, 0]);
        let small = nvmlDeviceGetCpuAffinity(gpu, 1, set.as_mut_ptr());
        assert_eq!(small, nvmlReturn_t::INSUFFICIENT_SIZE);
        let memory = nvmlDeviceGetMemoryAffinity(gpu, 3, set.as_mut_ptr(), 0);
        assert_eq!((memory, set), (nvmlReturn_t::SUCCESS, [2, 0, 0]));
        let scope = nvmlDeviceGetMemoryAffinity(gpu, 3, set.as_mut_ptr(), 2);
        assert_eq!(scope, nvmlReturn_t::INVALID_ARGUMENT);
        // A field of a link, named by its scope.
        let mut fields = [zeroed::<nvmlFieldValue_t>(); 2];
        for (link, field) in fields.iter_mut().enumerate() {
            (field.field_id, field.scope_id) = (165, link as u32);
        }
        let told = nvmlDeviceGetFieldValues(gpu, 2, fields.as_mut_ptr());
        assert_eq!(told, nvmlReturn_t::SUCCESS);
        assert_eq!(fields[0].nvml_return, nvmlReturn_t::NOT_SUPPORTED);
        assert_eq!(
            (fields[1].nvml_return, fields[1].value),
            (nvmlReturn_t::SUCCESS, 1)
        );
    }
}

/// Returns a record for the fabric's state that states the given version.
#[allow(non_snake_case)]
fn nvmlGpuFabricInfo_v3(version: u32) -> nvmlGpuFabricInfo_v3_t {
    // SAFETY: plain numbers.
    let mut info = unsafe { zeroed::<nvmlGpuFabricInfo_v3_t>() };
    info.v2.version = struct_version::<nvmlGpuFabricInfo_v3_t>(version);
    info
}

#[test]
fn what_the_driver_refuses_is_not_supported() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(1);
    assert_eq!(
        ask(nvmlDeviceGetPowerUsage, gpu),
        Err(nvmlReturn_t::NOT_SUPPORTED)
    );
    assert_eq!(
        ask(nvmlDeviceGetUtilizationRates, gpu).err(),
        Some(nvmlReturn_t::NOT_SUPPORTED)
    );
    assert_eq!(
        text(nvmlDeviceGetSerial, gpu, 96),
        Err(nvmlReturn_t::NOT_SUPPORTED)
    );
    let memory = ask(nvmlDeviceGetMemoryInfo, gpu).unwrap();
    assert_eq!((memory.total, memory.free, memory.used), (1000, 600, 400));
    // SAFETY: a record of the second version.
    let mut v2: nvmlMemory_v2_t = unsafe { zeroed() };
    v2.version = struct_version::<nvmlMemory_v2_t>(2);
    assert_eq!(
        // SAFETY: a writable record of this version.
        unsafe { nvmlDeviceGetMemoryInfo_v2(gpu, &mut v2) },
        nvmlReturn_t::NOT_SUPPORTED
    );
    assert_eq!(
        nvmlDeviceSetPowerManagementLimit(),
        nvmlReturn_t::NOT_SUPPORTED
    );
}

#[test]
fn without_a_lease_no_event_ever_arrives() {
    let _turn = turn();
    let mut set = nvmlEventSet_t(0);
    // SAFETY: a variable for the answer.
    let early = unsafe { nvmlEventSetCreate(&mut set) };
    assert_eq!(early, nvmlReturn_t::UNINITIALIZED);
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    assert_eq!(ask(nvmlDeviceGetSupportedEventTypes, gpu), Ok(0));
    // SAFETY: variables for the answers, and handles that the library knows or refuses.
    unsafe {
        assert_eq!(
            nvmlEventSetCreate(null_mut()),
            nvmlReturn_t::INVALID_ARGUMENT
        );
        assert_eq!(nvmlEventSetCreate(&mut set), nvmlReturn_t::SUCCESS);
        assert_eq!(nvmlDeviceRegisterEvents(gpu, 0, set), nvmlReturn_t::SUCCESS);
        assert_eq!(
            nvmlDeviceRegisterEvents(gpu, 8, set),
            nvmlReturn_t::NOT_SUPPORTED
        );

        let mut data: nvmlEventData_t = zeroed();
        let start = Instant::now();
        assert_eq!(
            nvmlEventSetWait_v2(set, &mut data, 120),
            nvmlReturn_t::TIMEOUT
        );
        assert!(start.elapsed() >= Duration::from_millis(120));
        assert_eq!(
            nvmlEventSetWait(set, &mut data.v1, 0),
            nvmlReturn_t::TIMEOUT
        );
        assert_eq!(
            nvmlEventSetWait(set, null_mut(), 0),
            nvmlReturn_t::INVALID_ARGUMENT
        );
        assert_eq!(
            nvmlEventSetWait_v2(set, null_mut(), 0),
            nvmlReturn_t::INVALID_ARGUMENT
        );

        let mut other = nvmlEventSet_t(0);
        assert_eq!(nvmlEventSetCreate(&mut other), nvmlReturn_t::SUCCESS);
        assert_ne!(set, other);
        assert_eq!(nvmlEventSetFree(set), nvmlReturn_t::SUCCESS);
        assert_eq!(
            nvmlEventSetWait_v2(other, &mut data, 0),
            nvmlReturn_t::TIMEOUT
        );
        assert_eq!(nvmlEventSetFree(other), nvmlReturn_t::SUCCESS);
        for gone in [
            set,
            nvmlEventSet_t(0),
            nvmlEventSet_t(1),
            nvmlEventSet_t(usize::MAX & !15),
        ] {
            assert_eq!(nvmlEventSetFree(gone), nvmlReturn_t::INVALID_ARGUMENT);
            assert_eq!(
                nvmlEventSetWait_v2(gone, &mut data, 9000),
                nvmlReturn_t::INVALID_ARGUMENT
            );
            assert_eq!(
                nvmlDeviceRegisterEvents(gpu, 0, gone),
                nvmlReturn_t::INVALID_ARGUMENT
            );
        }
    }
}

#[test]
fn a_wait_for_events_ends_with_the_library() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let mut set = nvmlEventSet_t(0);
    assert_eq!(
        // SAFETY: a variable for the answer.
        unsafe { nvmlEventSetCreate(&mut set) },
        nvmlReturn_t::SUCCESS
    );
    let waiting = std::thread::spawn(move || {
        // SAFETY: all zeroes is an event.
        let mut data: nvmlEventData_t = unsafe { zeroed() };
        // SAFETY: a variable for the event.
        unsafe { nvmlEventSetWait_v2(set, &mut data, u32::MAX) }
    });
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
    assert_eq!(waiting.join().unwrap(), nvmlReturn_t::UNINITIALIZED);
}

#[test]
fn a_forked_child_asks_for_itself() {
    let _turn = turn();
    for kind in KINDS {
        let session = Session::start(kind);
        let gpu = device(0);
        assert_eq!(session.server.connections(), 1);
        // SAFETY: the child only calls the library, which is under test, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let power = ask(nvmlDeviceGetPowerUsage, gpu);
            let left = shutdown();
            // SAFETY: ends the child.
            unsafe {
                libc::_exit(i32::from(
                    power != Ok(123_456) || left != nvmlReturn_t::SUCCESS,
                ))
            };
        }
        let mut status = -1;
        // SAFETY: the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(session.server.connections(), 2);
        pause_until_stale();
        let before = session.server.questions();
        assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(123_456));
        assert_eq!(
            (session.server.questions(), session.server.connections()),
            (before + 1, 2),
            "the parent's connection"
        );
    }
}

#[test]
fn calls_of_one_moment_share_a_snapshot() {
    let _turn = turn();
    let session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let (start, before) = (Instant::now(), session.server.questions());
    for _ in 0..1000 {
        ask(nvmlDeviceGetPowerUsage, gpu).unwrap();
    }
    let moments = start.elapsed().as_millis() as u32 / 100 + 1;
    assert!(
        session.server.questions() - before <= moments,
        "{} in {moments}",
        session.server.questions() - before
    );
    // Changing values are queried again, constant ones are not.
    pause_until_stale();
    let before = session.server.questions();
    text(nvmlDeviceGetName, gpu, 96).unwrap();
    assert_eq!(session.server.questions(), before);
    let mut changed = two_devices();
    changed.devices[0].power_milliwatts = Some(5);
    session.server.set(Answer::Snapshot(Box::new(changed)));
    assert_eq!(ask(nvmlDeviceGetPowerUsage, gpu), Ok(5));
    assert_eq!(session.server.questions(), before + 1);
}

#[test]
fn threads_at_once() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Tcp);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(init(), nvmlReturn_t::SUCCESS);
                    assert_eq!(ask(nvmlDeviceGetPowerUsage, device(0)), Ok(123_456));
                    std::thread::sleep(Duration::from_millis(5));
                    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
                }
            });
        }
    });
}

#[test]
fn before_and_after_initialisation() {
    let _turn = turn();
    let mut count = 0;
    assert_eq!(
        // SAFETY: a variable for the answer.
        unsafe { nvmlDeviceGetCount_v2(&mut count) },
        nvmlReturn_t::UNINITIALIZED
    );
    assert_eq!(nvmlSystemGetTopologyGpuSet(), nvmlReturn_t::UNINITIALIZED);
    assert_eq!(shutdown(), nvmlReturn_t::UNINITIALIZED);
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    // SAFETY: no pointers.
    assert_eq!(unsafe { nvmlInitWithFlags(1) }, nvmlReturn_t::SUCCESS);
    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
    assert!(
        ask(nvmlDeviceGetIndex, gpu).is_ok(),
        "initialised twice, shut down once"
    );
    assert_eq!(shutdown(), nvmlReturn_t::SUCCESS);
    assert_eq!(
        ask(nvmlDeviceGetIndex, gpu),
        Err(nvmlReturn_t::UNINITIALIZED)
    );
}

const INVALID: nvmlReturn_t = nvmlReturn_t::INVALID_ARGUMENT;

#[test]
fn wrong_handles() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    for handle in [0, 1, usize::MAX, gpu.0 + 1, gpu.0 + 2 * 16, gpu.0 - 16] {
        assert_eq!(
            ask(nvmlDeviceGetPowerUsage, nvmlDevice_t(handle)),
            Err(INVALID),
            "{handle:x}"
        );
        assert_eq!(
            text(nvmlDeviceGetName, nvmlDevice_t(handle), 96),
            Err(INVALID)
        );
    }
}

#[test]
fn null_pointers() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let mut other = nvmlDevice_t(0);
    let mut number = 0;
    // SAFETY: null is under test; the rest are variables for answers.
    unsafe {
        assert_eq!(nvmlDeviceGetPowerUsage(gpu, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetName(gpu, null_mut(), 96), INVALID);
        assert_eq!(nvmlDeviceGetCount_v2(null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetMemoryInfo(gpu, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(gpu, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetTemperatureV(gpu, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetEccMode(gpu, &mut number, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetPciInfo(gpu, null_mut()), INVALID);
        assert_eq!(
            nvmlDeviceGetComputeRunningProcesses(gpu, null_mut(), null_mut()),
            INVALID
        );
        assert_eq!(nvmlDeviceGetFieldValues(gpu, 1, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, null_mut()), INVALID);
        assert_eq!(nvmlDeviceGetHandleByUUID(null(), &mut other), INVALID);
        assert_eq!(nvmlDeviceGetHandleByUUIDV(null(), &mut other), INVALID);
        assert_eq!(nvmlInternalGetExportTable(null_mut(), null()), INVALID);
    }
}

#[test]
fn wrong_names_of_devices() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let _gpu = device(0);
    let mut other = nvmlDevice_t(0);
    // SAFETY: strings with their NUL, and a variable for answers.
    unsafe {
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(2, &mut other), INVALID);
        assert_eq!(
            nvmlDeviceGetHandleByUUID(c"GPU-none".as_ptr(), &mut other),
            nvmlReturn_t::NOT_FOUND
        );
        assert_eq!(
            nvmlDeviceGetHandleByPciBusId_v2(c"nonsense".as_ptr(), &mut other),
            INVALID
        );
        assert_eq!(
            nvmlDeviceGetHandleByPciBusId_v2(c"0:1:2.0".as_ptr(), &mut other),
            nvmlReturn_t::NOT_FOUND
        );
    }
}

#[test]
fn wrong_numbers() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let (mut number, mut long) = (0, 0);
    // SAFETY: variables for answers.
    unsafe {
        assert_eq!(nvmlDeviceGetClockInfo(gpu, 4, &mut number), INVALID);
        assert_eq!(nvmlDeviceGetClock(gpu, 0, 9, &mut number), INVALID);
        assert_eq!(nvmlDeviceGetTemperature(gpu, 9, &mut number), INVALID);
        assert_eq!(
            nvmlDeviceGetTemperatureThreshold(gpu, 8, &mut number),
            INVALID
        );
        assert_eq!(
            nvmlDeviceGetTemperatureThreshold(gpu, 2, &mut number),
            nvmlReturn_t::NOT_SUPPORTED
        );
        assert_eq!(
            nvmlDeviceGetTemperatureThreshold(gpu, 7, &mut number),
            nvmlReturn_t::NOT_SUPPORTED
        );
        assert_eq!(nvmlDeviceGetPcieThroughput(gpu, 2, &mut number), INVALID);
        assert_eq!(nvmlDeviceGetFanSpeed_v2(gpu, 2, &mut number), INVALID);
        assert_eq!(nvmlDeviceGetTotalEccErrors(gpu, 2, 0, &mut long), INVALID);
        assert_eq!(nvmlDeviceGetTotalEccErrors(gpu, 0, 2, &mut long), INVALID);
    }
}

#[test]
fn a_wrong_version() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    // SAFETY: a record with a wrong version is not read further.
    let mut memory: nvmlMemory_v2_t = unsafe { zeroed() };
    memory.version = struct_version::<nvmlMemory_v2_t>(1);
    // SAFETY: a writable record, whose version is refused.
    let result = unsafe { nvmlDeviceGetMemoryInfo_v2(gpu, &mut memory) };
    assert_eq!(
        (result, memory.total),
        (nvmlReturn_t::ARGUMENT_VERSION_MISMATCH, 0)
    );
}

#[test]
fn small_buffers() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let needed = "NVIDIA H200".len() as u32 + 1;
    assert_eq!(text(nvmlDeviceGetName, gpu, needed).unwrap(), "NVIDIA H200");
    for room in [0, 1, needed - 1] {
        assert_eq!(
            text(nvmlDeviceGetName, gpu, room),
            Err(nvmlReturn_t::INSUFFICIENT_SIZE)
        );
    }
    // SAFETY: arrays as long as stated.
    unsafe {
        let mut records: [nvmlProcessInfo_v2_t; 3] = zeroed();
        for room in [0, 1] {
            let mut count = room;
            let result =
                nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, records.as_mut_ptr());
            assert_eq!(
                (result, count, records[0].pid),
                (nvmlReturn_t::INSUFFICIENT_SIZE, 2, 0)
            );
        }
        let mut count = 3;
        let result = nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, records.as_mut_ptr());
        assert_eq!((result, count), (nvmlReturn_t::SUCCESS, 2));
        assert_eq!(
            (records[0].pid, records[0].used_gpu_memory),
            (4242, 1 << 30)
        );
        assert_eq!(
            (records[1].pid, records[1].used_gpu_memory),
            (4243, VALUE_NOT_AVAILABLE)
        );
        assert_eq!(records[2].pid, 0);
        let mut first: [nvmlProcessInfo_v1_t; 2] = zeroed();
        let mut count = 2;
        let result = nvmlDeviceGetComputeRunningProcesses(gpu, &mut count, first.as_mut_ptr());
        assert_eq!((result, first[1].pid), (nvmlReturn_t::SUCCESS, 4243));
        let mut count = 0;
        assert_eq!(
            nvmlDeviceGetGraphicsRunningProcesses(gpu, &mut count, null_mut()),
            nvmlReturn_t::SUCCESS
        );
    }
}

#[test]
fn the_older_records_of_a_place_on_the_bus_are_as_long_as_they_were() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let mut room = [0x55_u8; 80];
    assert_eq!(
        // SAFETY: more room than any version needs.
        unsafe { nvmlDeviceGetPciInfo(gpu, room.as_mut_ptr().cast()) },
        nvmlReturn_t::SUCCESS
    );
    assert!(room[..13].starts_with(b"0000:5D:00.0\0") && room[32..].iter().all(|b| *b == 0x55));
    assert_eq!(
        // SAFETY: more room than any version needs.
        unsafe { nvmlDeviceGetPciInfo_v2(gpu, room.as_mut_ptr().cast()) },
        nvmlReturn_t::SUCCESS
    );
    assert!(room[32..36] == 0x18be_10de_u32.to_le_bytes() && room[52..].iter().all(|b| *b == 0x55));
}

#[test]
fn the_extended_place_on_the_bus_has_its_class() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    // SAFETY: plain numbers.
    let mut info: nvmlPciInfoExt_t = unsafe { zeroed() };
    let mut told = |version| {
        info.version = version;
        // SAFETY: a record as long as any version.
        let status = unsafe { nvmlDeviceGetPciInfoExt(gpu, &mut info) };
        (status, info.bus, info.base_class, info.sub_class)
    };
    assert_eq!(told(0), (nvmlReturn_t::ARGUMENT_VERSION_MISMATCH, 0, 0, 0));
    let whole = struct_version::<nvmlPciInfoExt_t>(1);
    assert_eq!(told(whole), (nvmlReturn_t::SUCCESS, 0x5d, 3, 2));
    // SAFETY: null is refused.
    let none = unsafe { nvmlDeviceGetPciInfoExt(gpu, null_mut()) };
    assert_eq!(none, nvmlReturn_t::INVALID_ARGUMENT);
}

#[test]
fn performance_states_fill_the_callers_array() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let gpu = device(0);
    let mut states = [77_u32; 6];
    let mut told = |bytes| {
        // SAFETY: at least as many bytes as said.
        let status =
            unsafe { nvmlDeviceGetSupportedPerformanceStates(gpu, states.as_mut_ptr(), bytes) };
        (status, states)
    };
    assert_eq!(told(11), (nvmlReturn_t::INSUFFICIENT_SIZE, [77; 6]));
    let four = (nvmlReturn_t::SUCCESS, [0, 2, 8, 32, 77, 77]);
    assert_eq!(told(19), four);
    // SAFETY: null is refused.
    let none = unsafe { nvmlDeviceGetSupportedPerformanceStates(gpu, null_mut(), 64) };
    assert_eq!(none, nvmlReturn_t::INVALID_ARGUMENT);
}

#[test]
fn the_table_of_nvidia_smi() {
    let _turn = turn();
    let _session = Session::start(LinkKind::Shm);
    let id = [
        0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7,
        0xc4,
    ];
    let mut table: *const c_void = null();
    // SAFETY: a variable for the answer, and an id.
    unsafe {
        assert_eq!(
            nvmlInternalGetExportTable((&raw mut table).cast(), &[0; 16]),
            nvmlReturn_t::NOT_SUPPORTED
        );
        assert_eq!(
            nvmlInternalGetExportTable((&raw mut table).cast(), &id),
            nvmlReturn_t::SUCCESS
        );
        let words = table.cast::<usize>();
        let slots = words.read() / size_of::<usize>();
        assert_eq!(slots, 270);
        type Find = unsafe extern "C" fn(u32, *mut nvmlDevice_t, usize) -> nvmlReturn_t;
        let find: Find = std::mem::transmute(words.add(81).read());
        let mut found = nvmlDevice_t(0);
        assert_eq!(find(1, &mut found, 0x22), nvmlReturn_t::SUCCESS);
        assert_eq!(found, device(1));
        assert_eq!(find(2, &mut found, 0x22), nvmlReturn_t::INVALID_ARGUMENT);
        type List = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut u8) -> nvmlReturn_t;
        let list: List = std::mem::transmute(words.add(213).read());
        let mut records = vec![0x55_u8; 3 * 4128];
        let mut count = 3;
        assert_eq!(
            list(device(0), &mut count, records.as_mut_ptr()),
            nvmlReturn_t::SUCCESS
        );
        assert_eq!(count, 2);
        assert_eq!(records[..4], 4242_u32.to_le_bytes());
        assert!(records[32..].starts_with(b"/usr/bin/python3\0"));
        assert_eq!(records[4128..4132], 4243_u32.to_le_bytes());
        assert!(records[2 * 4128..].iter().all(|b| *b == 0x55));
        let mut count = 1;
        assert_eq!(
            list(device(0), &mut count, records.as_mut_ptr()),
            nvmlReturn_t::INSUFFICIENT_SIZE
        );
        let line_printed: extern "C" fn() -> nvmlReturn_t =
            std::mem::transmute(words.add(26).read());
        assert_eq!(line_printed(), nvmlReturn_t::SUCCESS);
        for slot in (1..slots).filter(|s| ![26, 81, 213, 214, 215].contains(s)) {
            let call: extern "C" fn() -> nvmlReturn_t = std::mem::transmute(words.add(slot).read());
            assert_eq!(call(), nvmlReturn_t::NOT_SUPPORTED, "{slot}");
        }
    }
}

#[test]
fn error_strings() {
    for (code, text) in [
        (0, c"Success"),
        (3, c"Not Supported"),
        (999, c"Unknown Error"),
    ] {
        assert_eq!(
            // SAFETY: no pointer is passed; the result is a static text.
            unsafe { CStr::from_ptr(nvmlErrorString(nvmlReturn_t(code))) },
            text
        );
    }
    // SAFETY: no pointer is passed; the result is a static text.
    assert!(!unsafe { CStr::from_ptr(nvmlErrorString(nvmlReturn_t(12345))) }.is_empty());
}
