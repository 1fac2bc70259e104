//! Copies: the bytes and the moment at which a call returns.

use std::{ptr, sync::atomic::AtomicBool};

use outboard_api::cuda::CUmemcpyAttributes;

use super::*;

/// `CU_MEMHOSTALLOC_DEVICEMAP`.
const DEVICEMAP: u32 = 2;

/// A reply whose only field is data.
fn data(bytes: &[u8]) -> Answer {
    let mut body = (bytes.len() as u32).to_le_bytes().to_vec();
    body.extend(bytes);
    Answer::Reply(body)
}

#[test]
fn a_copy_to_the_device_carries_its_bytes_and_does_not_wait() {
    over_each_link(|kind| {
        let client = Client::start(kind, |_, _| Answer::Usual);
        let address = allocate(MIB).expect("memory");
        let mut bytes = [7u8; 100];
        // SAFETY: a local buffer of 100 bytes.
        let copied = unsafe { cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(copied, SUCCESS);
        // The program may change its memory at once.
        bytes.fill(8);
        let seen = client.seen();
        let copies: Vec<&String> = seen.iter().filter(|m| is_named(m, "CopyIn")).collect();
        assert_eq!(copies.len(), 1);
        assert!(
            copies[0].contains(&format!("dst: {address}")),
            "{}",
            copies[0]
        );
        assert!(
            copies[0].contains(&format!("{:?}", [7u8; 100])),
            "{}",
            copies[0]
        );
        assert!(!seen.iter().any(|m| m.starts_with("Fence")));
    });
}

#[test]
fn a_copy_from_the_device_returns_the_replys_bytes() {
    const LEN: usize = 3 * MIB;
    let client = Client::start(Kind::Tcp, |request, _| match request {
        Request::CopyOut(copy) => {
            let bytes: Vec<u8> = (0..copy.len)
                .map(|i| ((copy.src + i) % 251) as u8)
                .collect();
            data(&bytes)
        }
        _ => Answer::Usual,
    });
    let address = allocate(LEN).expect("memory");
    let mut out = vec![0u8; LEN + 1];
    // SAFETY: a buffer that is long enough.
    let copied = unsafe { cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, LEN) };
    assert_eq!(copied, SUCCESS);
    let is_right = |(i, byte): (usize, &u8)| *byte == ((address + i as u64) % 251) as u8;
    assert!(out[..LEN].iter().enumerate().all(is_right));
    assert_eq!(out[LEN], 0);
    assert!(client.count("CopyOut") > 0);
}

#[test]
fn a_reply_of_another_length_is_an_error() {
    let _client = Client::start(Kind::Tcp, |request, _| match request {
        Request::CopyOut(copy) => data(&vec![1; copy.len as usize - 1]),
        _ => Answer::Usual,
    });
    let address = allocate(MIB).expect("memory");
    let mut out = vec![0u8; 1000];
    // SAFETY: a buffer that is long enough.
    let copied = unsafe { cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, out.len()) };
    assert_eq!(copied, CUresult::CUDA_ERROR_UNKNOWN);
    assert!(out.iter().all(|byte| *byte == 0));
}

/// Copies 100 bytes to the device in a stream.
fn copy_in(address: CUdeviceptr, stream: CUstream) {
    let bytes = [7u8; 100];
    // SAFETY: a local buffer of 100 bytes, which the call takes.
    let copied = unsafe { cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), 100, stream) };
    assert_eq!(copied, SUCCESS);
}

#[test]
fn a_wait_for_copies_to_the_device_alone_is_a_message() {
    over_each_link(|kind| {
        let client = Client::start(kind, |_, _| Answer::Usual);
        let address = allocate(MIB).expect("memory");
        let counts = || (client.count("CopySettled"), client.count("FenceStream"));
        // What came before is not known.
        assert_eq!((synchronize(), counts()), (SUCCESS, (0, 1)));
        copy_in(address, CUstream::NULL);
        copy_in(address, CUstream::NULL);
        assert_eq!((synchronize(), counts()), (SUCCESS, (1, 1)));
        // It is known then, and so is what another copy waits for.
        assert_eq!((synchronize(), counts()), (SUCCESS, (1, 1)));
        copy_in(address, CUstream::NULL);
        assert_eq!((synchronize(), counts()), (SUCCESS, (2, 1)));
    });
}

#[test]
fn a_wait_for_copies_and_other_work_asks() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let (address, function) = (allocate(MIB).expect("memory"), load());
    let counts = || (client.count("CopySettled"), client.count("FenceStream"));
    let mut stream = CUstream::NULL;
    // SAFETY: a local output.
    assert_eq!(unsafe { cuStreamCreate(&mut stream, 0) }, SUCCESS);
    let run = |stream| assert_eq!(launch(function, [1; 3], [1; 3], stream), SUCCESS);

    run(CUstream::NULL);
    copy_in(address, CUstream::NULL);
    assert_eq!((synchronize(), counts()), (SUCCESS, (0, 1)), "work before");
    copy_in(address, CUstream::NULL);
    run(CUstream::NULL);
    assert_eq!((synchronize(), counts()), (SUCCESS, (0, 2)), "work after");
    run(stream);
    copy_in(address, CUstream::NULL);
    assert_eq!(
        (synchronize(), counts()),
        (SUCCESS, (0, 3)),
        "work of a stream that the default one waits for"
    );
    run(CUstream::NULL);
    copy_in(address, stream);
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, SUCCESS);
    assert_eq!(counts(), (0, 4), "work of the default stream");
    assert_eq!((synchronize(), counts()), (SUCCESS, (0, 5)));
    copy_in(address, stream);
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, SUCCESS);
    assert_eq!(counts(), (1, 5), "all work is known to be done");
}

/// Copies 64 bytes to the device, in one row or in 4, without a stream.
fn copy_in_now(address: CUdeviceptr, rows: usize) {
    let bytes = [7u8; 64];
    let from = bytes.as_ptr().cast::<c_void>();
    let record = CUDA_MEMCPY2D {
        src_memory_type: CU_MEMORYTYPE_HOST,
        src_host: from,
        src_pitch: 64 / rows,
        dst_memory_type: CU_MEMORYTYPE_DEVICE,
        dst_device: address,
        dst_pitch: 512,
        width_in_bytes: 64 / rows,
        height: rows,
        // SAFETY: a record of numbers and addresses, of which the other end's are unused.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: a local buffer of 64 bytes, which the call takes.
    let copied = unsafe {
        match rows {
            1 => cuMemcpyHtoD_v2(address, from, 64),
            _ => cuMemcpy2D_v2(&record),
        }
    };
    assert_eq!(copied, SUCCESS);
}

/// Copies 100 bytes in a batch; returns the answer and the copy that it names.
fn batch(
    (mut dst, mut src): (u64, u64),
    src_access_order: u32,
    stream: CUstream,
) -> (CUresult, usize) {
    let mut attributes = CUmemcpyAttributes {
        src_access_order,
        ..CUmemcpyAttributes::default()
    };
    let (mut bytes, mut first, mut failed) = (100, 0, 77);
    let attributes = (&raw mut attributes).cast();
    // SAFETY: arrays of one entry each; the copy's ends are the caller's.
    let answer = unsafe {
        cuMemcpyBatchAsync(
            &mut dst,
            &mut src,
            &mut bytes,
            1,
            attributes,
            &mut first,
            1,
            &mut failed,
            stream,
        )
    };
    (answer, failed)
}

/// The call takes the bytes, also while earlier work may write host memory, and does not wait.
#[test]
fn a_batch_reads_its_sources_during_the_call_if_it_is_asked_to() {
    over_each_link(|kind| {
        let client = Client::start(kind, move |request, notes| match request {
            Request::CopyOut(_) => Answer::Later,
            Request::Ping(_) => {
                notes.release_with(&[[100, 0, 0, 0].as_slice(), &[9; 100]].concat());
                Answer::Usual
            }
            _ => Answer::Usual,
        });
        let (address, mut stream) = (allocate(MIB).expect("memory"), CUstream::NULL);
        // SAFETY: a local output.
        assert_eq!(unsafe { cuStreamCreate(&mut stream, 0) }, SUCCESS);
        for flags in [0, DEVICEMAP] {
            let (mut source, mut target) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: local outputs, and the first has 4 KiB.
            unsafe {
                assert_eq!(cuMemHostAlloc(&mut source, 4096, flags), SUCCESS);
                assert_eq!(cuMemHostAlloc(&mut target, 4096, 0), SUCCESS);
                source.cast::<u8>().write_bytes(7, 100);
            }
            copy_out(target, address);
            let whole = (address, source as u64);
            let during = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
            assert_eq!(batch(whole, during, stream), (SUCCESS, 77));
            // SAFETY: its 4 KiB, which the call has read.
            unsafe { source.cast::<u8>().write_bytes(8, 100) };
            let seen = client.seen();
            let copy = seen
                .iter()
                .rfind(|m| is_named(m, "CopyIn"))
                .expect("a copy");
            assert!(copy.contains(&format!("{:?}", [7u8; 100])), "{copy}");
        }
        assert_eq!(client.count("FenceStream"), 0);
        // Memory of the device is read in the stream's order, before the call returns.
        for (order, waits) in [
            (CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, 1),
            (CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0),
            (CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 0),
        ] {
            let counts = || [client.count("Copy"), client.count("FenceStream")];
            let [copies, fences] = counts();
            let whole = (address, address + 4096);
            assert_eq!(batch(whole, order, stream), (SUCCESS, 77));
            assert_eq!(counts(), [copies + 1, fences + waits], "{order}");
        }
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(batch((address, address), 4, stream), (refused, 0));
        assert_eq!(batch((0, address), 1, stream), (refused, 0));
        let legacy = CUstream::NULL;
        assert_eq!(batch((address, address), 1, legacy), (refused, usize::MAX));
    });
}

/// Copies from or to pinned memory of 4 KiB that go on past it.
#[test]
fn a_copy_past_host_memory_is_refused() {
    over_each_link(|kind| {
        let client = Client::start(kind, |request, _| match request {
            Request::CopyOut(copy) => data(&vec![7; copy.len as usize]),
            _ => Answer::Usual,
        });
        let address = allocate(MIB).expect("memory");
        let mut pinned = ptr::null_mut();
        // SAFETY: a local output.
        assert_eq!(unsafe { cuMemHostAlloc(&mut pinned, 4096, 0) }, SUCCESS);
        let rows = |height| CUDA_MEMCPY2D {
            src_memory_type: CU_MEMORYTYPE_HOST,
            src_host: pinned,
            src_pitch: 512,
            dst_memory_type: CU_MEMORYTYPE_DEVICE,
            dst_device: address,
            dst_pitch: 1024,
            width_in_bytes: 512,
            height,
            // SAFETY: a record of numbers and addresses, of which the other end's are unused.
            ..unsafe { std::mem::zeroed() }
        };
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        for (bytes, height, expected) in
            [(4097, 9, refused), (65536, 32, refused), (4096, 8, SUCCESS)]
        {
            // SAFETY: memory that is as long, or a call that touches none.
            unsafe {
                assert_eq!(cuMemcpyHtoD_v2(address, pinned, bytes), expected);
                assert_eq!(
                    cuMemcpyHtoDAsync_v2(address, pinned, bytes, CUstream::NULL),
                    expected
                );
                assert_eq!(cuMemcpy2D_v2(&rows(height)), expected);
                if expected == refused {
                    assert_eq!(cuMemcpyDtoH_v2(pinned, address, bytes), expected);
                }
            }
        }
        assert_eq!((synchronize(), client.count("CopyOut")), (SUCCESS, 0));
    });
}

#[test]
fn rows_beyond_the_greatest_pitch_are_refused() {
    let _client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let address = allocate(MIB).expect("memory");
    let bytes = vec![7u8; PITCH_MAX as usize + 64];
    for (pitch, expected) in [
        (PITCH_MAX as usize, SUCCESS),
        (PITCH_MAX as usize + 1, CUresult::CUDA_ERROR_INVALID_VALUE),
    ] {
        let record = CUDA_MEMCPY3D {
            src_memory_type: CU_MEMORYTYPE_HOST,
            src_host: bytes.as_ptr().cast(),
            src_pitch: pitch,
            dst_memory_type: CU_MEMORYTYPE_DEVICE,
            dst_device: address,
            dst_pitch: 64,
            width_in_bytes: 32,
            height: 2,
            depth: 1,
            // SAFETY: a record of numbers and addresses, of which the others are unused.
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: two rows of a local buffer.
        assert_eq!(unsafe { cuMemcpy3D_v2(&record) }, expected, "{pitch}");
    }
}

#[test]
fn a_copy_beyond_an_array_is_refused_at_the_call() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let bytes = [7u8; 1024];
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        width: 16,
        height: 8,
        depth: 0,
        format: CU_AD_FORMAT_FLOAT,
        num_channels: 1,
        flags: 0,
    };
    let mut array = CUarray::NULL;
    // SAFETY: a local output and record.
    let made = unsafe { cuArray3DCreate_v2(&mut array, &descriptor) };
    assert_eq!(made, SUCCESS);
    let copy = |x, y, width| {
        let record = CUDA_MEMCPY2D {
            src_memory_type: CU_MEMORYTYPE_HOST,
            src_host: bytes.as_ptr().cast(),
            src_pitch: 64,
            dst_memory_type: CU_MEMORYTYPE_ARRAY,
            dst_array: array,
            dst_x_in_bytes: x,
            dst_y: y,
            width_in_bytes: width,
            height: 4,
            // SAFETY: a record of numbers and addresses, of which the others are unused.
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: four rows of a local buffer, which is taken at the call.
        unsafe { cuMemcpy2DAsync_v2(&record, CUstream::NULL) }
    };
    assert_eq!((copy(0, 0, 64), copy(32, 4, 32)), (SUCCESS, SUCCESS));
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!((copy(1, 0, 64), copy(0, 5, 64)), (invalid, invalid));
    assert_eq!(client.count("CopyBoxIn"), 2);
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { cuArrayDestroy(array) }, SUCCESS);
    assert_eq!(copy(0, 0, 64), CUresult::CUDA_ERROR_INVALID_HANDLE);
}

/// The kernel before it may wait for what the host does next.
#[test]
fn an_asynchronous_copy_to_or_from_managed_memory_is_a_message() {
    over_each_link(|kind| {
        let client = Client::start(kind, |_, _| Answer::Usual);
        let function = load();
        let mut managed = [0; 2];
        for address in &mut managed {
            // SAFETY: a local output.
            assert_eq!(unsafe { cuMemAllocManaged(address, 4096, 1) }, SUCCESS);
        }
        let [to, from] = managed;
        let counts = || (client.count("Copy"), client.count("FenceStream"));
        assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        // SAFETY: memory of 4 KiB each.
        let copied = unsafe { cuMemcpyAsync(to, from, 4096, CUstream::NULL) };
        assert_eq!(copied, SUCCESS);
        assert_eq!(counts(), (1, 0));
        let mut pinned = [ptr::null_mut::<c_void>(); 2];
        for memory in &mut pinned {
            // SAFETY: a local output.
            let made = unsafe { cuMemHostAlloc(memory, 4096, DEVICEMAP) };
            assert_eq!(made, SUCCESS);
        }
        let [one, other] = pinned.map(|memory| memory as CUdeviceptr);
        for (n, (to, from)) in [(one, from), (to, other), (other, to)]
            .into_iter()
            .enumerate()
        {
            // SAFETY: memory of 4 KiB each.
            let copied = unsafe { cuMemcpyAsync(to, from, 4096, CUstream::NULL) };
            assert_eq!(
                (copied, counts()),
                (SUCCESS, (n + 2, 0)),
                "pinned memory, {n}"
            );
        }
        // SAFETY: memory of 4 KiB each.
        assert_eq!(unsafe { cuMemcpy(to, from, 4096) }, SUCCESS);
        assert_eq!(counts(), (4, 1), "a synchronous one");
        // SAFETY: memory of 4 KiB each.
        let copied = unsafe { cuMemcpyAsync(one, other, 4096, CUstream::NULL) };
        assert_eq!((copied, counts().0), (SUCCESS, 4), "pinned memory alone");
    });
}

/// As in CUDA, what earlier work wrote to host memory is there when a synchronous copy returns.
#[test]
fn a_synchronous_copy_waits_for_kernels_that_may_write_host_memory() {
    over_each_link(|kind| {
        let client = Client::start(kind, |_, _| Answer::Usual);
        let (address, function) = (allocate(MIB).expect("memory"), load());
        let run = || assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        let fences = || client.count("FenceStream");
        for rows in [1, 4] {
            run();
            copy_in_now(address, rows);
        }
        assert_eq!(fences(), 0, "no host memory");

        let mut pinned = ptr::null_mut();
        // SAFETY: a local output.
        assert_eq!(unsafe { cuMemHostAlloc(&mut pinned, 4096, 0) }, SUCCESS);
        run();
        copy_in_now(address, 1);
        assert_eq!(fences(), 0, "memory that kernels have no address of");

        let mut mapped = 0;
        // SAFETY: a local output, and memory that was allocated.
        let known = unsafe { cuMemHostGetDevicePointer_v2(&mut mapped, pinned, 0) };
        assert_eq!(known, SUCCESS);
        copy_in(address, CUstream::NULL);
        assert_eq!(fences(), 0, "an asynchronous copy");
        for (rows, sent) in [(1, 1), (4, 2)] {
            run();
            copy_in_now(address, rows);
            assert_eq!(fences(), sent, "{rows} rows");
        }
        // SAFETY: memory of this test, which nothing uses.
        assert_eq!(unsafe { cuMemFreeHost(pinned) }, SUCCESS);
        let before = fences();
        for rows in [1, 4] {
            run();
            copy_in_now(address, rows);
        }
        assert_eq!(fences(), before, "memory that was freed");
    });
}

/// Copies 100 bytes to `pinned` in the default stream, without a wait.
fn copy_out(pinned: *mut c_void, address: CUdeviceptr) {
    // SAFETY: pinned memory of 4 KiB, which stays until the test ends.
    let copied = unsafe { cuMemcpyDtoHAsync_v2(pinned, address, 100, CUstream::NULL) };
    assert_eq!(copied, SUCCESS);
}

#[test]
fn a_wait_after_a_copy_to_pinned_memory_is_for_its_reply() {
    let is_refused = Arc::new(AtomicBool::new(false));
    let refused = is_refused.clone();
    let client = Client::start(Kind::Tcp, move |request, _| match request {
        Request::CopyOut(_) if refused.load(Ordering::Acquire) => {
            Answer::Error(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
        Request::CopyOut(copy) => data(&vec![7; copy.len as usize]),
        _ => Answer::Usual,
    });
    let (address, function) = (allocate(MIB).expect("memory"), load());
    let mut pinned = ptr::null_mut();
    // SAFETY: a local output.
    assert_eq!(unsafe { cuMemHostAlloc(&mut pinned, 4096, 0) }, SUCCESS);
    let counts = || (client.count("CopyOut"), client.count("FenceStream"));
    let run = || assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);

    run();
    copy_out(pinned, address);
    assert_eq!(synchronize(), SUCCESS);
    // SAFETY: the bytes that the copy has written.
    let bytes = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), 100) };
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!((synchronize(), counts()), (SUCCESS, (1, 0)));

    copy_out(pinned, address);
    run();
    assert_eq!(
        (synchronize(), counts()),
        (SUCCESS, (2, 1)),
        "work after it"
    );

    is_refused.store(true, Ordering::Release);
    copy_out(pinned, address);
    assert_eq!(synchronize(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(
        (synchronize(), counts()),
        (SUCCESS, (3, 2)),
        "an error is told once"
    );
}

/// A server that maps the client's memory, as it is in one process, and a GPU that does its work
/// at once: copies between staging and a device of one value, and words of the board.
fn with_board() -> impl FnMut(&Request<'_>, &mut Notes<'_>) -> Answer + Send + 'static {
    let mut board = 0;
    move |request, _| match request {
        Request::BoardOpen(open) => {
            board = open.va;
            Answer::Reply(vec![1])
        }
        Request::Copy(copy) => {
            if copy.dst < 0x5000_0000_0000 {
                // SAFETY: staging memory, which the client leaves alone until the fence after it.
                unsafe { ptr::write_bytes(copy.dst as *mut u8, 0x5a, copy.len as usize) };
            }
            Answer::Nothing
        }
        Request::FenceStream(fence) if fence.slot > 0 => {
            let word = (board + u64::from(fence.slot) * 8) as *mut u64;
            // SAFETY: a word of the board, which the client reads as an atomic.
            unsafe { std::sync::atomic::AtomicU64::from_ptr(word) }
                .store(fence.value, Ordering::Release);
            Answer::Usual
        }
        _ => Answer::Usual,
    }
}

#[test]
fn long_copies_over_shm_go_through_staging() {
    const LEN: usize = 5 * MIB + 3;
    let client = Client::start(Kind::Shm, with_board());
    let address = allocate(2 * LEN).expect("memory");
    let mut out = vec![0u8; LEN + 1];
    // SAFETY: a buffer that is long enough.
    let copied = unsafe { cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, LEN) };
    assert_eq!(copied, SUCCESS);
    assert!(out[..LEN].iter().all(|byte| *byte == 0x5a));
    assert_eq!(out[LEN], 0);
    let pieces = client.count("Copy");
    assert_eq!(pieces, LEN.div_ceil(MIB));
    assert_eq!(client.count("CopyOut"), 0);
    // SAFETY: the buffer has more bytes than are copied.
    let copied = unsafe { cuMemcpyHtoD_v2(address, out.as_ptr().cast(), LEN) };
    assert_eq!(copied, SUCCESS);
    assert_eq!(client.count("Copy"), 2 * pieces);
    assert_eq!(client.count("CopyIn"), 0);
}

#[test]
fn each_fence_over_shm_names_a_value_of_its_own() {
    let client = Client::start(Kind::Shm, with_board());
    let function = load();
    for _ in 0..100 {
        assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        assert_eq!(synchronize(), SUCCESS);
    }
    let seen = client.seen();
    let fences = seen.iter().filter(|m| is_named(m, "FenceStream"));
    let values: std::collections::BTreeSet<&str> =
        fences.filter_map(|m| m.split("value: ").nth(1)).collect();
    assert_eq!(values.len(), 100);
}

#[test]
fn fences_over_tcp_name_no_word() {
    let client = Client::start(Kind::Tcp, with_board());
    assert_eq!(launch(load(), [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert_eq!(synchronize(), SUCCESS);
    assert_eq!(client.count("BoardOpen"), 0);
    let seen = client.seen();
    let fence = seen.iter().find(|m| is_named(m, "FenceStream"));
    assert!(
        fence.is_some_and(|m| m.contains("slot: 0, value: 0")),
        "{fence:?}"
    );
}
