//! Mirrors: what a thread sends while another opens one, and servers that have no memory for one.

use std::{
    ptr,
    sync::{atomic::AtomicBool, mpsc},
    thread::JoinHandle,
};

use super::*;

/// Bytes of a copy, shorter than the memory that is mirrored.
const COPIED_BYTES: usize = 60;

fn pinned() -> *mut c_void {
    let mut pinned = ptr::null_mut();
    // SAFETY: a local output.
    assert_eq!(unsafe { cuMemHostAlloc(&mut pinned, 4096, 0) }, SUCCESS);
    pinned
}

/// A reply with the bytes of a copy, which are all 7.
fn copied() -> Vec<u8> {
    let mut body = (COPIED_BYTES as u32).to_le_bytes().to_vec();
    body.extend([7; COPIED_BYTES]);
    body
}

fn copy_to(pinned: *mut c_void, address: CUdeviceptr) {
    // SAFETY: pinned memory of 4 KiB, which stays until the test ends.
    let copied = unsafe { cuMemcpyDtoHAsync_v2(pinned, address, COPIED_BYTES, CUstream::NULL) };
    assert_eq!(copied, SUCCESS);
}

/// Launches a kernel that names this memory, on a thread of its own.
fn launch_beside(client: &Client, function: CUfunction, named: u64) -> JoinHandle<CUresult> {
    let driver = client.driver;
    let mut context = CUcontext::NULL;
    // SAFETY: a local output.
    assert_eq!(unsafe { cuCtxGetCurrent(&mut context) }, SUCCESS);
    thread::spawn(move || {
        set_driver_of_thread(driver);
        // SAFETY: the context of the other thread, which lasts.
        assert_eq!(unsafe { cuCtxSetCurrent(context) }, SUCCESS);
        launch_with(named, function, [1; 3], [1; 3], CUstream::NULL)
    })
}

fn comes(from: &mpsc::Receiver<()>) {
    from.recv_timeout(Duration::from_secs(10))
        .expect("what the test waits for");
}

/// Such a copy was sent before the launch: its bytes are in the mirror when the kernel runs.
#[test]
fn a_launch_waits_for_a_copy_that_came_while_it_opened_the_mirror() {
    let (opening, is_opening) = mpsc::channel();
    let (sent, is_sent) = mpsc::channel();
    let has_bytes = AtomicBool::new(false);
    let had_bytes = Arc::new(Mutex::new(None));
    let noted = had_bytes.clone();
    let client = Client::start(Kind::Tcp, move |request, notes| {
        match request {
            Request::HostMap(_) => {
                opening.send(()).expect("the test");
                comes(&is_sent);
            }
            Request::CopyOut(_) => return Answer::Later,
            Request::HostWrite(write) if write.data.contains(&7) => {
                has_bytes.store(true, Ordering::Release);
            }
            Request::Launch(_) => *noted.lock() = Some(has_bytes.load(Ordering::Acquire)),
            Request::Ping(_) => notes.release_with(&copied()),
            _ => {}
        }
        Answer::Usual
    });
    let (address, function, pinned) = (allocate(MIB).expect("memory"), load(), pinned());
    let launched = launch_beside(&client, function, pinned as u64);
    comes(&is_opening);
    copy_to(pinned, address);
    sent.send(()).expect("the server");
    // The launch waits for the copy, which has not come.
    thread::sleep(Duration::from_millis(300));
    client.driver.call(&Ping {}, |_| ()).expect("a reply");
    assert_eq!(launched.join().expect("the thread"), SUCCESS);
    client.driver.call(&Ping {}, |_| ()).expect("a reply");
    assert_eq!(*had_bytes.lock(), Some(true), "a kernel without the copy");
}

/// The earlier copy may wait for what this thread does afterwards.
#[test]
fn a_copy_is_sent_while_a_launch_waits_for_an_earlier_one() {
    let client = Client::start(Kind::Tcp, move |request, notes| match request {
        Request::CopyOut(_) => Answer::Later,
        Request::Ping(_) => {
            notes.release_with(&copied());
            Answer::Usual
        }
        _ => Answer::Usual,
    });
    let (address, function, pinned) = (allocate(MIB).expect("memory"), load(), pinned());
    copy_to(pinned, address);
    let launched = launch_beside(&client, function, pinned as u64);
    thread::sleep(Duration::from_millis(300));
    assert!(!launched.is_finished(), "the launch waits for the copy");
    let begin = Instant::now();
    copy_to(pinned, address);
    assert!(begin.elapsed() < Duration::from_secs(5));
    client.driver.call(&Ping {}, |_| ()).expect("a reply");
    assert_eq!(launched.join().expect("the thread"), SUCCESS);
    assert_eq!(client.count("CopyOut"), 2);
}

/// Asks for the memory's device address, on a thread of its own.
fn ask_for_pointer(client: &Client, pinned: u64) -> JoinHandle<CUresult> {
    let driver = client.driver;
    let mut context = CUcontext::NULL;
    // SAFETY: a local output.
    assert_eq!(unsafe { cuCtxGetCurrent(&mut context) }, SUCCESS);
    thread::spawn(move || {
        set_driver_of_thread(driver);
        let pinned = ptr::with_exposed_provenance_mut(pinned as usize);
        let mut address = 0;
        // SAFETY: the context of the other thread, which lasts, and a local output.
        unsafe {
            assert_eq!(cuCtxSetCurrent(context), SUCCESS);
            cuMemHostGetDevicePointer_v2(&mut address, pinned, 0)
        }
    })
}

/// The second finds a mirror that is open already, but may not be used before the copy has come.
#[test]
fn each_call_that_makes_memory_reachable_waits_for_copies_into_it() {
    let client = Client::start(Kind::Tcp, move |request, notes| match request {
        Request::CopyOut(_) => Answer::Later,
        Request::Ping(_) => {
            notes.release_with(&copied());
            Answer::Usual
        }
        _ => Answer::Usual,
    });
    let (address, function, pinned) = (allocate(MIB).expect("memory"), load(), pinned());
    let launched = launch_with(pinned as u64, function, [1; 3], [1; 3], CUstream::NULL);
    assert_eq!(launched, SUCCESS);
    copy_to(pinned, address);
    let asked = [(); 2].map(|()| {
        let asked = ask_for_pointer(&client, pinned as u64);
        thread::sleep(Duration::from_millis(300));
        asked
    });
    assert_eq!(asked.each_ref().map(JoinHandle::is_finished), [false; 2]);
    client.driver.call(&Ping {}, |_| ()).expect("a reply");
    for asked in asked {
        assert_eq!(asked.join().expect("the thread"), SUCCESS);
    }
}

/// The server has memory for the mirror, but not for what it would remember of it.
#[test]
fn a_mirror_that_the_server_cannot_watch_is_an_error_of_the_call_that_opens_it() {
    let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let is_refused = Arc::new(AtomicBool::new(true));
    let refuses = is_refused.clone();
    let client = Client::start(Kind::Tcp, move |request, _| match request {
        Request::HostWatch(_) if refuses.load(Ordering::Acquire) => Answer::Error(refused),
        _ => Answer::Usual,
    });
    let (function, pinned) = (load(), pinned());
    let launch = || launch_with(pinned as u64, function, [1; 3], [1; 3], CUstream::NULL);
    let mut address = 0;
    // SAFETY: a local output.
    let mut pointer = || unsafe { cuMemHostGetDevicePointer_v2(&mut address, pinned, 0) };
    let mut mapped = ptr::null_mut();
    // SAFETY: a local output.
    let mut allocate_mapped = || unsafe { cuMemHostAlloc(&mut mapped, 4096, 2) };
    assert_eq!([pointer(), launch(), allocate_mapped()], [refused; 3]);
    // Each was undone, and is not told again.
    assert_eq!(synchronize(), SUCCESS);
    let counts = || ["HostMap", "HostUnmap", "Launch"].map(|name| client.count(name));
    assert_eq!(counts(), [3, 3, 0]);
    is_refused.store(false, Ordering::Release);
    assert_eq!([launch(), pointer(), launch()], [SUCCESS; 3]);
    assert_eq!(counts(), [4, 3, 2]);
}
