//! Device and host memory: mapped, shared, freed and released.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::*;

#[test]
fn data_goes_in_and_out_and_everything_is_given_back() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream: STREAM,
        flags: 1,
        priority: 0,
    }));
    let va = client.map(0, 4 * MIB);
    let data: Vec<u8> = (0..300_000_u32).map(|i| (i * 7) as u8).collect();
    for stream in [0, STREAM] {
        client.done(Request::CopyIn(messages::CopyIn {
            dst: va + 100,
            stream,
            sync: 0,
            data: data[..].into(),
        }));
        client.done(Request::Copy(messages::Copy {
            dst: va + MIB,
            src: va + 100,
            len: data.len() as u64,
            stream,
            sync: 0,
        }));
        let mut out = client.wait(Request::CopyOut(messages::CopyOut {
            src: va + MIB,
            len: data.len() as u64,
            stream,
        }));
        assert_eq!(out.ready(), Ok(true));
        assert_eq!(out.data(), Some(&data[..]));
    }
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va,
        uc: 9,
        n: 10,
        h_stream: STREAM,
    }));
    let mut fence = client.wait(Request::FenceContext(messages::FenceContext {
        slot: 0,
        value: 0,
    }));
    assert_eq!(fence.ready(), Ok(true));
    drop(fence);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn freed_memory_stays_while_the_gpu_is_busy() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 2 * MIB);
    let memset = |dst_device| {
        Request::CuMemsetD8Async(messages::CuMemsetD8Async {
            dst_device,
            uc: 1,
            n: 1,
            h_stream: 0,
        })
    };
    fake.ask("fake_hold", 1);
    client.done(memset(va));
    client.done(Request::MemUnmap(messages::MemUnmap { va, len: 2 * MIB }));
    let status = client.refused(memset(va));
    assert_eq!(
        status,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "gone for the client"
    );
    client.device.reap();
    assert_eq!(fake.ask("fake_mappings", 0), 1, "there for the GPU");
    fake.ask("fake_hold", 0);
    client.device.reap();
    assert_eq!(fake.ask("fake_mappings", 0), 0);
}

#[test]
fn memory_freed_and_not_yet_given_back_makes_room() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 48 * MIB);
    client.done(Request::MemUnmap(messages::MemUnmap { va, len: 48 * MIB }));
    client.map(64 * MIB, 48 * MIB);
    let too_much = messages::MemMap {
        va: client.base + 256 * MIB,
        len: 48 * MIB,
    };
    let status = client.refused(Request::MemMap(too_much));
    assert_eq!(status, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}

#[test]
fn a_range_freed_and_mapped_again_is_the_same_memory() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    for _ in 0..100 {
        let va = client.map(0, 40 * MIB);
        client.done(Request::MemUnmap(messages::MemUnmap { va, len: 40 * MIB }));
    }
    // A different division of the same range must wait until the old one is unmapped.
    client.map(0, 2 * MIB);
    client.map(2 * MIB, 2 * MIB);
    assert_eq!(fake.ask("fake_mappings", 0), 2);
}

#[test]
fn a_mapping_of_the_clients_own_allocation_is_never_handed_to_another() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let (va, len) = (client.base, 2 * MIB);
    let allocation = 5;
    client.done(Request::AllocationCreate(messages::AllocationCreate {
        allocation,
        device: 0,
        len,
    }));
    let map = |va| {
        Request::AllocationMap(messages::AllocationMap {
            allocation,
            va,
            len,
            offset: 0,
        })
    };
    let access = |va| {
        Request::AllocationAccess(messages::AllocationAccess {
            va,
            len,
            device: 0,
            flags: 3,
        })
    };
    client.done(map(va));
    client.done(access(va));
    client.done(map(va + 4 * MIB));
    client.done(access(va + 4 * MIB));
    client.done(Request::AllocationUnmap(messages::AllocationUnmap {
        va,
        len,
    }));
    client.map(0, len);
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va,
        uc: 5,
        n: len,
        h_stream: 0,
    }));
    let out = client.wait(Request::CopyOut(messages::CopyOut {
        src: va + 4 * MIB,
        len: 4,
        stream: 0,
    }));
    assert_eq!(out.data(), Some(&[0; 4][..]));
}

#[test]
fn watched_mirrors_hand_over_what_kernels_changed() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = 0x5000_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let len = 3 * 4096;
    let map = || {
        Request::HostMap(messages::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 0,
        })
    };
    client.done(map());
    client.done(Request::HostWatch(messages::HostWatch { va, len }));
    client.done(Request::HostWrite(messages::HostWrite {
        va: va + 4096,
        data: b"from the client",
    }));
    let mut changed = Vec::new();
    let take = |client: &mut Client, changed: &mut Vec<(u64, u8)>| {
        changed.clear();
        outboard_device::Host::take_host_pages(&mut client.device, &mut |va, word| {
            assert_eq!(word.len(), 4, "no more than the changed word");
            changed.push((va, word[0]));
        });
    };
    take(&mut client, &mut changed);
    assert_eq!(changed, [], "the client knows what it wrote");
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va + 2 * 4096,
        uc: 6,
        n: 1,
        h_stream: 0,
    }));
    take(&mut client, &mut changed);
    assert_eq!(changed, [(va + 2 * 4096, 6)]);
    take(&mut client, &mut changed);
    assert_eq!(changed, []);
    let beyond = messages::HostWrite {
        va: va + len - 1,
        data: b"ab",
    };
    let status = client.refused(Request::HostWrite(beyond));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE);
    client.done(Request::HostUnmap(messages::HostUnmap { va }));
    client.done(map());
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

/// Returns the kernel's flags of the mapping that begins at an address.
fn mapping_flags(va: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("a text");
    let mut lines = maps.lines();
    let begin = format!("{va:x}-");
    lines.find(|line| line.starts_with(&begin)).expect("mapped");
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    flags.expect("flags").to_string()
}

#[test]
fn a_long_mirror_is_on_huge_pages() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = 0x5200_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    client.done(Request::HostMap(messages::HostMap {
        va,
        len: 4 * MIB,
        flags: 0,
        fd_tag: 0,
    }));
    assert!(mapping_flags(va).split(' ').any(|flag| flag == "hg"));
}

#[test]
fn words_that_go_on_in_the_next_page_are_one_run() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = 0x5100_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let len = 40 * 4096;
    client.done(Request::HostMap(messages::HostMap {
        va,
        len,
        flags: 0,
        fd_tag: 0,
    }));
    client.done(Request::HostWatch(messages::HostWatch { va, len }));
    // The last pages are those of another part.
    for (at, n) in [(4096 - 8, 2 * 4096), (5 * 4096, 4), (15 * 4096, 2 * 4096)] {
        client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
            dst_device: va + at,
            uc: 6,
            n,
            h_stream: 0,
        }));
    }
    let mut runs = Vec::new();
    outboard_device::Host::take_host_pages(&mut client.device, &mut |at, bytes| {
        assert!(bytes.iter().all(|byte| *byte == 6));
        runs.push((at - va, bytes.len()));
    });
    assert_eq!(
        runs,
        [
            (4096 - 8, 2 * 4096),
            (5 * 4096, 4),
            (15 * 4096, 4096),
            (16 * 4096, 4096)
        ]
    );
}

#[test]
fn a_thread_without_a_context_may_be_the_last_to_use_host_memory() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = 0x5200_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let (len, flags, fd_tag) = (4096, 0, 0);
    client.done(Request::HostMap(messages::HostMap {
        va,
        len,
        flags,
        fd_tag,
    }));
    let lent = outboard_device::Host::lend(
        &mut client.device,
        va,
        len,
        outboard_net::remote::Borrower::Software,
    );
    client.done(Request::HostUnmap(messages::HostUnmap { va }));
    std::thread::spawn(|| drop(lent.expect("lent")))
        .join()
        .expect("dropped");
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn an_address_taken_in_the_server_is_refused_and_left_alone() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let page = vec![1_u8; 3 * 4096];
    let va = (page.as_ptr() as u64).next_multiple_of(4096);
    let status = client.refused(Request::HostMap(messages::HostMap {
        va,
        len: 4096,
        flags: 0,
        fd_tag: 0,
    }));
    assert_eq!(status, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert!(page.iter().all(|byte| *byte == 1));
}

#[test]
fn memory_outlives_the_context_that_it_was_allocated_in() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 2 * MIB);
    client.done(Request::ContextDestroy(messages::ContextDestroy {
        context: CONTEXT,
    }));
    client.done(Request::MemUnmap(messages::MemUnmap { va, len: 2 * MIB }));
    client.device.reap();
    assert_eq!(fake.ask("fake_mappings", 0), 0);
}

/// Maps a page of host memory at an address that no other client has.
fn map_mirror(client: &mut Client, offset: u64) -> u64 {
    let at = 0x5800_0000_0000 + std::ptr::from_ref(client) as u64 % (1 << 30) / 4096 * 4096;
    let va = at + offset;
    client.done(mirror_at(va));
    va
}

fn mirror_at(va: u64) -> Request<'static> {
    Request::HostMap(messages::HostMap {
        va,
        len: 4096,
        flags: 0,
        fd_tag: 0,
    })
}

#[test]
fn the_client_is_served_while_memory_that_is_mapped_again_is_in_use() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let word = map_mirror(&mut client, 0);
    let va = client.map(0, 4 * MIB);
    // All of it again, and a part of it.
    for len in [4 * MIB, 2 * MIB] {
        kernel_that_waits(&mut client, word);
        client.done(Request::MemUnmap(messages::MemUnmap { va, len: 4 * MIB }));
        let again = Request::MemMap(messages::MemMap { va, len });
        client.send_served(again, word).expect("mapped");
    }
}

/// Frees a mirror that a kernel uses, and lets another kernel keep the device busy, which waits for
/// the word of another mirror. Returns the word, and the freed mirror.
fn freed_mirror(fake: &Fake, client: &mut Client) -> (u64, u64) {
    let (word, freed) = (map_mirror(client, 0), map_mirror(client, 8192));
    fake.ask("fake_hold", 1);
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: freed,
        uc: 1,
        n: 1,
        h_stream: 0,
    }));
    client.done(Request::HostUnmap(messages::HostUnmap { va: freed }));
    // A kernel that came later does not use the freed memory.
    fake.ask("fake_hold", 0);
    kernel_that_waits(client, word);
    let status = client.refused(mirror_at(freed));
    assert_eq!(status, CUresult::CUDA_ERROR_NOT_READY);
    std::thread::sleep(Duration::from_millis(60));
    (word, freed)
}

#[test]
fn the_client_is_served_while_host_memory_is_unregistered() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let (word, freed) = freed_mirror(&fake, &mut client);
    client.send_served(mirror_at(freed), word).expect("mapped");
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

/// Lets this thread make no others.
fn refuse_threads() {
    let rules = [libc::SYS_clone, libc::SYS_clone3].map(|call| (call, Vec::new()));
    let refused = SeccompAction::Errno(libc::EAGAIN as u32);
    let arch = std::env::consts::ARCH.try_into().expect("an architecture");
    let filter = SeccompFilter::new(rules.into(), SeccompAction::Allow, refused, arch);
    let filter: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    seccompiler::apply_filter(&filter).expect("applied");
}

#[test]
fn a_call_without_a_thread_that_may_wait_is_refused() {
    let test = std::thread::spawn(|| {
        let fake = Fake::build(&[]);
        let mut client = Client::new(&fake);
        let (word, freed) = freed_mirror(&fake, &mut client);
        refuse_threads();
        for _ in 0..2 {
            let refused = client.send(mirror_at(freed)).err().expect("refused");
            assert_eq!(refused.status, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            assert!(refused.message.contains("pthread_create"), "{refused}");
        }
        client.device.host.write(word, &[0]).expect("a mirror");
        client.done(mirror_at(freed));
        drop(client);
        assert_eq!(fake.ask("fake_live", 0), 0);
    });
    test.join().expect("right");
}

#[test]
fn pools_whose_copies_are_over_make_room() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let (dst, src) = (map_mirror(&mut client, 0), map_mirror(&mut client, 8192));
    client.done(Request::HostFunc(messages::HostFunc {
        stream: 0,
        call: 11,
    }));
    client.done(Request::Copy(messages::Copy {
        dst,
        src,
        len: 4096,
        stream: 0,
        sync: 0,
    }));
    let (va, len) = (client.base, 64 * MIB);
    let map = Request::MemMap(messages::MemMap { va, len });
    client.send_served(map, dst).expect("mapped");
}

#[test]
fn an_allocation_without_room_does_not_wait_for_work_that_uses_no_pool() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let (dst, src) = (map_mirror(&mut client, 0), map_mirror(&mut client, 8192));
    client.done(Request::Copy(messages::Copy {
        dst,
        src,
        len: 4096,
        stream: 0,
        sync: 0,
    }));
    // The copy is over, whose memory its pool still has; a kernel goes on, and a capture.
    kernel_that_waits(&mut client, dst);
    client.done(Request::CaptureBegin(messages::CaptureBegin {
        stream: 0,
        mode: 2,
        graph: 0,
        dependencies: &[],
        edges: &[],
    }));
    let va = client.base;
    let (all, more) = (64 * MIB, 128 * MIB);
    let start = Instant::now();
    let refused = client.refused(Request::MemMap(messages::MemMap { va, len: more }));
    assert_eq!(refused, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    client.done(Request::MemMap(messages::MemMap { va, len: all }));
    assert!(start.elapsed() < Duration::from_secs(5));
    client.device.host.write(dst, &[0]).expect("a mirror");
}
