//! Launches, and the limits of launches and memory that the client itself holds.

use super::*;

#[test]
fn a_launch_is_one_message_that_nobody_answers() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let function = load();
    for grid in 1..=3 {
        assert_eq!(
            launch(function, [grid, 1, 1], [32, 2, 1], CUstream::NULL),
            SUCCESS
        );
    }
    let seen = client.seen();
    let launches: Vec<&String> = seen.iter().filter(|m| is_named(m, "Launch")).collect();
    assert_eq!(launches.len(), 3);
    for (grid, message) in (1..).zip(&launches) {
        let shape = format!("grid_x: {grid}, grid_y: 1, grid_z: 1, block_x: 32, block_y: 2");
        assert!(message.contains(&shape), "{message}");
        // The arguments lie at the offsets of the kernel's parameters.
        let params = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99u8,
        ];
        assert!(
            message.contains(&format!("params: {params:?}")),
            "{message}"
        );
    }
    let at = |name: &str| seen.iter().position(|m| is_named(m, name));
    assert!(at("ContextCreate") < at("LibraryLoad") && at("LibraryLoad") < at("Launch"));
}

/// Launches the kernel of [`load`] with one block of one thread.
fn launch_with(
    function: CUfunction,
    params: &mut [*mut c_void],
    extra: &mut [*mut c_void],
) -> CUresult {
    let array = |array: &mut [*mut c_void]| match array.is_empty() {
        true => std::ptr::null_mut(),
        false => array.as_mut_ptr(),
    };
    let (params, extra) = (array(params), array(extra));
    // SAFETY: arrays of the caller's, as a test has them or NULL.
    unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params, extra) }
}

#[test]
fn a_launch_that_lacks_an_argument_leaves_no_trace() {
    over_each_link(|kind| {
        let client = Client::start(kind, |_, _| Answer::Usual);
        let function = load();
        let mut address = 0x1122_3344_5566_7788u64;
        let first: *mut c_void = (&raw mut address).cast();
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let null = std::ptr::null_mut();
        // Some of its message is laid out by the time the second pointer is looked at.
        assert_eq!(launch_with(function, &mut [first, null], &mut []), invalid);
        assert_eq!(launch_with(function, &mut [null, first], &mut []), invalid);
        assert_eq!(launch_with(function, &mut [], &mut []), invalid);
        assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        assert_eq!(client.count("Launch"), 1);
        assert_eq!(synchronize(), SUCCESS);
    });
}

#[test]
fn a_packed_buffer_may_end_early() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let function = load();
    let key = std::ptr::without_provenance_mut::<c_void>;
    let mut buffer = [7u8; 12];
    for (len, params) in [
        (12, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7u8]),
        (9, [7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0]),
        (0, [0; 12]),
    ] {
        let mut len: usize = len;
        let (buffer, len) = (buffer.as_mut_ptr().cast(), (&raw mut len).cast());
        let mut extra = [key(1), buffer, key(2), len, key(0)];
        assert_eq!(launch_with(function, &mut [], &mut extra), SUCCESS);
        let sent = client.seen();
        let found = sent.iter().rev().find(|m| is_named(m, "Launch"));
        let found = found.expect("a launch");
        assert!(found.contains(&format!("params: {params:?}")), "{found}");
    }
}

#[test]
fn a_launch_beyond_the_devices_limits_is_refused_here() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let function = load();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let grid_max = GRID_MAX as u32;
    for (grid, block) in [
        ([0, 1, 1], [32, 1, 1]),
        ([grid_max + 1, 1, 1], [32, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [32, 33, 1]),
    ] {
        assert_eq!(
            launch(function, grid, block, CUstream::NULL),
            invalid,
            "{grid:?} {block:?}"
        );
    }
    assert_eq!(client.count("Launch"), 0);
    assert_eq!(
        launch(function, [grid_max, 1, 1], [32, 32, 1], CUstream::NULL),
        SUCCESS
    );
    assert_eq!(client.count("Launch"), 1);
}

#[test]
fn a_stream_that_nobody_made_is_refused_here() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let function = load();
    let mut stream = CUstream::NULL;
    // SAFETY: a local output.
    assert_eq!(unsafe { cuStreamCreate(&mut stream, 1) }, SUCCESS);
    assert_eq!(launch(function, [1; 3], [1; 3], stream), SUCCESS);
    let wild = CUstream(stream.0 + 1);
    let refused = launch(function, [1; 3], [1; 3], wild);
    assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_HANDLE);
    let seen = client.seen();
    let own = format!("stream: {}", stream.0);
    let of_stream: Vec<&str> = seen
        .iter()
        .filter(|m| m.contains(&own))
        .filter_map(|m| m.split('(').next())
        .collect();
    assert_eq!(of_stream, ["StreamCreate", "Launch"]);
}

#[test]
fn memory_is_counted_against_the_quota() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let window = client.driver.welcome.window_base;
    let free = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: local outputs.
        assert_eq!(unsafe { cuMemGetInfo_v2(&mut free, &mut total) }, SUCCESS);
        (free, total)
    };
    let (before, total) = free();
    assert_eq!((before as u64, total as u64), (QUOTA_BYTES, QUOTA_BYTES));
    let first = allocate(40 * MIB).expect("within the quota");
    assert!(
        (window..window + WINDOW_BYTES).contains(&first),
        "{first:#x}"
    );
    assert_eq!(free().0, before - 40 * MIB);
    assert_eq!(allocate(40 * MIB), Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    // SAFETY: a call without pointers of this process.
    assert_eq!(unsafe { cuMemFree_v2(first) }, SUCCESS);
    assert_eq!(free().0, before);
    assert!(allocate(40 * MIB).is_ok());
    assert_eq!(client.count("MemMap"), 2);
}

#[test]
fn memory_that_nobody_allocated_is_refused_here() {
    let client = Client::start(Kind::Shm, |_, _| Answer::Usual);
    let address = allocate(MIB).expect("memory");
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    // SAFETY: addresses of the device alone.
    unsafe {
        assert_eq!(cuMemsetD8_v2(address, 1, MIB), SUCCESS);
        assert_eq!(cuMemsetD8_v2(address + (WINDOW_BYTES / 2), 1, 1), invalid);
        assert_eq!(cuMemFree_v2(address + 1), invalid);
        assert_eq!(cuMemFree_v2(address), SUCCESS);
        assert_eq!(cuMemFree_v2(address), invalid);
    }
    let sets = client
        .seen()
        .into_iter()
        .filter(|m| m.starts_with("CuMemset"));
    assert_eq!(sets.count(), 1);
}

#[test]
fn two_servers_of_one_process_do_not_meet() {
    let clients = [Kind::Shm, Kind::Tcp].map(|kind| {
        thread::spawn(move || {
            let client = Client::start(kind, |_, _| Answer::Usual);
            let function = load();
            let launches = if kind == Kind::Shm { 5 } else { 8 };
            for _ in 0..launches {
                assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
            }
            let address = allocate(4 * MIB).expect("memory");
            assert_eq!(synchronize(), SUCCESS);
            assert_eq!(client.count("Launch"), launches);
            (address, client.driver.welcome.window_base)
        })
    });
    let [one, other] = clients.map(|client| client.join().expect("a client"));
    assert_ne!(one.1, other.1);
    assert_ne!(one.0, other.0);
}
