//! Device memory, physical allocations, mirrors of host memory.

use std::os::fd::OwnedFd;

use outboard_api::enums::*;

use super::*;

#[test]
fn a_synchronous_copy_comes_before_what_is_sent_later_to_any_stream() {
    let mut c = client();
    let stream = c.mint();
    c.done(Request::StreamCreate(m::StreamCreate {
        stream,
        flags: CU_STREAM_NON_BLOCKING,
        priority: 0,
    }));
    for (call, sync) in [(1, 0), (2, 1)] {
        let dst = c.base;
        c.done(Request::HostFunc(m::HostFunc { stream: 0, call }));
        let data = &[call as u8; 8];
        c.done(Request::CopyIn(m::CopyIn {
            dst,
            stream: 0,
            sync,
            data: data[..].into(),
        }));
        let ask = Request::CopyOut(m::CopyOut {
            src: dst,
            len: 8,
            stream,
        });
        let (Outcome::Wait(mut pending), _) = c.send(&ask).unwrap() else {
            panic!("nothing to wait for");
        };
        assert_eq!(pending.ready().unwrap(), sync == 0);
        c.done(Request::HostFuncDone(m::HostFuncDone { call }));
        assert_eq!(pending.ready(), Ok(true));
        // The value before the copy, or after it if the copy is synchronous.
        assert_eq!(pending.data().unwrap()[0], [0, 2][sync as usize]);
        c.sync().unwrap();
    }
}

#[test]
fn the_quota_is_kept() {
    let mut c = client();
    let map = |va, len| Request::MemMap(m::MemMap { va, len });
    let unmap = |va, len| Request::MemUnmap(m::MemUnmap { va, len });
    let rest = (64 << 20) - (4 << 20);
    let at = c.base + (1 << 30);
    assert_eq!(
        c.status(map(at, rest + 4096)),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    );
    c.done(map(at, rest));
    assert_eq!(
        c.status(map(at + (1 << 30), 4096)),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!(
        c.status(unmap(at, 4096)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        c.status(unmap(at + 4096, rest)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    c.done(unmap(at, rest));
    // A failed mapping is not counted.
    assert_eq!(
        c.status(map(c.base, 4096)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        c.status(map(0x1000, 4096)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    c.done(map(at, rest));
}

#[test]
fn memory_that_is_freed_while_in_use_goes_later() {
    let mut c = client();
    let kernel = c.kernels();
    let (at, len) = (c.base + (1 << 30), 2 << 20);
    for round in 0..50u32 {
        c.done(Request::MemMap(m::MemMap { va: at, len }));
        let arguments = params(&[at]);
        c.done(Request::CuMemsetD32V2(m::CuMemsetD32V2 {
            dst_device: at,
            ui: round,
            n: 1,
        }));
        c.done(Request::Launch(launch(
            kernel("increment"),
            8,
            32,
            &arguments,
        )));
        let copy = m::Copy {
            dst: c.base + 4 * u64::from(round),
            src: at,
            len: 4,
            stream: 0,
            sync: 0,
        };
        c.done(Request::Copy(copy));
        c.done(Request::MemUnmap(m::MemUnmap { va: at, len }));
    }
    assert_eq!(
        c.read_words(c.base, 50),
        (0..50).map(|round| round + 256).collect::<Vec<_>>()
    );
}

#[test]
fn physical_allocations_can_be_mapped_again() {
    let mut c = client();
    let allocation = c.mint();
    let (one, two, len) = (c.base + (1 << 30), c.base + (2 << 30), 2 << 20);
    c.done(Request::AllocationCreate(m::AllocationCreate {
        allocation,
        device: 0,
        len: 2 * len,
    }));
    let map = |va, offset| {
        Request::AllocationMap(m::AllocationMap {
            allocation,
            va,
            len,
            offset,
        })
    };
    let access = |va, flags| {
        Request::AllocationAccess(m::AllocationAccess {
            va,
            len,
            device: 0,
            flags,
        })
    };
    c.done(map(one, 0));
    c.done(map(two, 0));
    assert_eq!(c.status(map(two, len)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(
        c.status(map(one + len, 2 * len)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    // The memory cannot be used before access is granted.
    let set = m::CuMemsetD32V2 {
        dst_device: one,
        ui: 77,
        n: 1,
    };
    assert_eq!(
        c.status(Request::CuMemsetD32V2(set.clone())),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    c.done(access(one, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    c.done(access(two, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    c.done(Request::CuMemsetD32V2(set));
    assert_eq!(c.read_words(two, 1), [77]);
    c.done(Request::AllocationRelease(m::AllocationRelease {
        allocation,
    }));
    assert_eq!(
        c.status(map(two + len, 0)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
    let unmap = |va, len| Request::AllocationUnmap(m::AllocationUnmap { va, len });
    assert_eq!(
        c.status(unmap(one, len / 2)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    c.done(unmap(one, len));
    assert_eq!(c.read_words(two, 1), [77]);
    c.done(unmap(two, len));
    // All of it counts as free again.
    c.done(Request::MemMap(m::MemMap {
        va: one,
        len: 60 << 20,
    }));
}

fn changes(c: &mut Client) -> Vec<(u64, Vec<u8>)> {
    let mut changed = Vec::new();
    c.device
        .take_host_pages(&mut |va, data| changed.push((va, data.to_vec())));
    changed
}

#[test]
fn kernels_use_mirrors_of_host_memory() {
    let mut c = client();
    let kernel = c.kernels();
    // Far from the addresses that the system gives other tests, which run in this process too.
    let va = 0x3a00_0000_0010;
    let host = |len| {
        Request::HostMap(m::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 0,
        })
    };
    c.done(host(8192));
    assert_eq!(
        c.status(host(16)),
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    // A second range on the same page.
    c.done(Request::HostMap(m::HostMap {
        va: va - 16,
        len: 16,
        flags: 0,
        fd_tag: 0,
    }));
    c.done(Request::HostWatch(m::HostWatch { va, len: 8192 }));
    c.done(Request::HostWrite(m::HostWrite {
        va: va + 4096,
        data: &5u32.to_le_bytes(),
    }));
    let outside = m::HostWrite {
        va: va + 8190,
        data: &[0; 4],
    };
    assert_eq!(
        c.status(Request::HostWrite(outside)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(changes(&mut c), []);
    for at in [va + 4096, va + 4104] {
        let arguments = params(&[at]);
        c.done(Request::Launch(launch(
            kernel("increment"),
            1,
            3,
            &arguments,
        )));
    }
    c.sync().unwrap();
    let expected = vec![(va + 4096, vec![8, 0, 0, 0]), (va + 4104, vec![3, 0, 0, 0])];
    assert_eq!(changes(&mut c), expected);
    assert_eq!(changes(&mut c), []);
    c.done(Request::HostUnmap(m::HostUnmap { va }));
    assert_eq!(
        c.status(Request::HostUnmap(m::HostUnmap { va })),
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    );
    c.done(host(64));
    let arguments = params(&[va + 4096]);
    c.done(Request::Launch(launch(
        kernel("increment"),
        1,
        1,
        &arguments,
    )));
    assert_eq!(
        c.sync().unwrap_err().status,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    );
}

#[test]
fn mirrors_share_their_outer_pages_and_may_be_long() {
    let mut c = client();
    let base = 0x3a20_0000_0000;
    let map = |va, len| {
        Request::HostMap(m::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 0,
        })
    };
    let unmap = |va| Request::HostUnmap(m::HostUnmap { va });
    let write = |va| {
        let data = &[7; 8];
        Request::HostWrite(m::HostWrite { va, data })
    };
    let (first, second, third) = (base + 16, base + 0x1800, base + 0x1810);
    c.done(map(first, 0x17f0));
    c.done(map(second, 16));
    c.done(map(third, 0x2000));
    c.done(write(second));
    c.done(unmap(second));
    c.done(write(first + 0x17e0));
    c.done(write(third));
    c.done(unmap(first));
    c.done(write(third));
    c.done(map(second, 16));
    c.done(unmap(third));
    c.done(write(second));
    c.done(unmap(second));
    // Each of its 16 million pages is free, and none is looked at by itself.
    for _ in 0..3 {
        c.done(map(base, 64 << 30));
        c.done(unmap(base));
    }
}

#[test]
fn addresses_in_use_here_cannot_become_mirrors() {
    let mut c = client();
    let here = Box::new([0u8; 8192]);
    let va = here.as_ptr() as u64;
    let map = |va, len| {
        Request::HostMap(m::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 0,
        })
    };
    assert_eq!(c.status(map(va, 8192)), CUresult::CUDA_ERROR_MAP_FAILED);
    assert_eq!(c.status(map(c.base, 4096)), CUresult::CUDA_ERROR_MAP_FAILED);
    for (va, len) in [
        (0, 4096),
        (va, 0),
        (u64::MAX - 10, 4096),
        (1 << 46, u64::MAX),
    ] {
        assert_eq!(
            c.status(map(va, len)),
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "{va:#x}+{len:#x}"
        );
    }
    assert_eq!(*here, [0; 8192]);
}

#[test]
fn host_memory_comes_back_while_work_waits_for_the_client() {
    let mut c = client();
    c.done(Request::HostFunc(m::HostFunc { stream: 0, call: 1 }));
    // Far from other tests' addresses, as above.
    let va = 0x3b10_0000_0000;
    let start = Instant::now();
    for _ in 0..3 {
        c.done(Request::HostMap(m::HostMap {
            va,
            len: 8192,
            flags: 0,
            fd_tag: 0,
        }));
        c.done(Request::HostUnmap(m::HostUnmap { va }));
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    c.done(Request::HostFuncDone(m::HostFuncDone { call: 1 }));
    c.sync().unwrap();
}

#[test]
fn shared_files_are_the_same_memory() {
    let mut c = client();
    let kernel = c.kernels();
    let file = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    // Far from other tests' addresses, as above.
    let va = 0x3b00_0000_0000;
    let map = |c: &mut Client, len| {
        let mut fds = |tag| {
            assert_eq!(tag, 9);
            Ok::<OwnedFd, Failure>(file.try_clone().unwrap())
        };
        let mut cx = Cx {
            context: CONTEXT,
            images: &mut c.images,
            placed: None,
            fds: &mut fds,
            service: &mut |_, _| true,
            unserved: None,
        };
        let request = Request::HostMap(m::HostMap {
            va,
            len,
            flags: 0,
            fd_tag: 9,
        });
        dispatch(c.device.as_mut(), &mut cx, &request, &mut Vec::new())
            .map(|_| ())
            .map_err(|f| f.status)
    };
    // Touching pages past a file's end would kill the server.
    assert_eq!(map(&mut c, 12288), Err(CUresult::CUDA_ERROR_MAP_FAILED));
    map(&mut c, 8192).unwrap();
    rustix::io::pwrite(&file, &40u32.to_le_bytes(), 4096).unwrap();
    let arguments = params(&[va + 4096]);
    c.done(Request::Launch(launch(
        kernel("increment"),
        2,
        1,
        &arguments,
    )));
    c.sync().unwrap();
    let mut word = [0; 4];
    rustix::io::pread(&file, &mut word, 4096).unwrap();
    assert_eq!(u32::from_le_bytes(word), 42);
    c.done(Request::HostUnmap(m::HostUnmap { va }));
}
