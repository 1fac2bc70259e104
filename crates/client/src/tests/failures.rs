//! Errors that arrive, and servers that are lost.

use super::*;

const FAULT: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const LOST_CONTEXT: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

/// A server whose first launch fails with this error.
fn failing(
    status: CUresult,
) -> impl FnMut(&Request<'_>, &mut Notes<'_>) -> Answer + Send + 'static {
    let mut has_failed = false;
    move |request, notes| {
        if matches!(request, Request::Launch(_)) && !std::mem::replace(&mut has_failed, true) {
            notes.fault(status);
        }
        Answer::Usual
    }
}

#[test]
fn an_error_of_earlier_work_is_reported_once_by_the_next_wait() {
    over_each_link(|kind| {
        let client = Client::start(kind, failing(FAULT));
        let function = load();
        assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        assert_eq!(synchronize(), FAULT, "{kind:?}");
        assert_eq!(synchronize(), SUCCESS, "{kind:?}");
        assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
        assert_eq!(synchronize(), SUCCESS, "{kind:?}");
        assert_eq!(client.count("Launch"), 2);
    });
}

#[test]
fn an_error_that_loses_the_context_stays() {
    let client = Client::start(Kind::Tcp, failing(LOST_CONTEXT));
    let function = load();
    assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert_eq!(synchronize(), LOST_CONTEXT);
    let sent = client.peer.seen().len();
    for _ in 0..2 {
        assert_eq!(synchronize(), LOST_CONTEXT);
        assert_eq!(
            launch(function, [1; 3], [1; 3], CUstream::NULL),
            LOST_CONTEXT
        );
        assert_eq!(allocate(MIB), Err(LOST_CONTEXT));
    }
    assert_eq!(client.peer.seen().len(), sent);
}

#[test]
fn an_error_in_place_of_a_reply_is_the_calls_own() {
    let refused = CUresult::CUDA_ERROR_INVALID_PTX;
    let _client = Client::start(Kind::Tcp, move |request, _| match request {
        Request::LibraryLoad(_) => Answer::Error(refused),
        _ => Answer::Usual,
    });
    let mut module = CUmodule::NULL;
    let image = c".version 8.0\n.target sm_80\n.address_size 64\n";
    // SAFETY: a local output, and a text with its NUL.
    let loaded = unsafe { cuModuleLoadData(&mut module, image.as_ptr().cast()) };
    assert_eq!(loaded, refused);
    // No later call reports it.
    assert_eq!(synchronize(), SUCCESS);
}

#[test]
fn a_server_that_leaves_ends_waits_and_all_later_calls() {
    for kind in [Kind::Shm, Kind::Tcp] {
        let (result, later) = in_time(move || {
            let _client = Client::start(kind, |request, _| match request {
                Request::FenceStream(_) => Answer::Leave,
                _ => Answer::Usual,
            });
            let function = load();
            assert_eq!(launch(function, [1; 3], [1; 3], CUstream::NULL), SUCCESS);
            let result = synchronize();
            let begun = Instant::now();
            let later = [
                launch(function, [1; 3], [1; 3], CUstream::NULL),
                synchronize(),
                allocate(MIB).expect_err("no server"),
            ];
            assert!(begun.elapsed() < Duration::from_secs(1));
            (result, later)
        });
        assert_eq!(result, GONE, "{kind:?}");
        assert_eq!(later, [GONE; 3], "{kind:?}");
    }
}

#[test]
fn a_server_that_leaves_ends_the_waits_of_all_threads() {
    let results = in_time(|| {
        let mut fences = 0;
        let client = Client::start(Kind::Tcp, move |request, _| match request {
            Request::FenceStream(_) => {
                fences += 1;
                match fences {
                    4 => Answer::Leave,
                    _ => Answer::Nothing,
                }
            }
            _ => Answer::Usual,
        });
        let (driver, function) = (client.driver, load());
        let mut context = CUcontext::NULL;
        // SAFETY: a local output.
        assert_eq!(unsafe { cuCtxGetCurrent(&mut context) }, SUCCESS);
        let waits: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(move || {
                    set_driver_of_thread(driver);
                    let mut stream = CUstream::NULL;
                    // SAFETY: a local output, and calls without pointers.
                    unsafe {
                        assert_eq!(cuCtxSetCurrent(context), SUCCESS);
                        assert_eq!(cuStreamCreate(&mut stream, 1), SUCCESS);
                        assert_eq!(launch(function, [1; 3], [1; 3], stream), SUCCESS);
                        cuStreamSynchronize(stream)
                    }
                })
            })
            .collect();
        let results = waits.into_iter().map(|w| w.join().expect("a thread"));
        results.collect::<Vec<_>>()
    });
    assert_eq!(results, [GONE; 4]);
}

#[test]
fn bytes_that_are_no_reply_end_the_session_and_nothing_else() {
    for bytes in [vec![1, 2, 3], vec![0xff; 16], vec![0xff; 200]] {
        let len = bytes.len();
        let result = in_time(move || {
            let _client = Client::start(Kind::Tcp, move |request, _| match request {
                Request::FenceStream(_) => Answer::Raw(bytes.clone()),
                _ => Answer::Usual,
            });
            assert_eq!(launch(load(), [1; 3], [1; 3], CUstream::NULL), SUCCESS);
            [synchronize(), synchronize()]
        });
        assert_eq!(result, [GONE; 2], "{len} bytes");
    }
}

#[test]
fn a_gpu_without_memory_for_a_context_refuses_it_at_once() {
    let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let _client = Client::start(Kind::Tcp, move |request, _| match request {
        Request::ContextCreate(_) => Answer::Error(full),
        _ => Answer::Usual,
    });
    let (mut before, mut created, mut after) = (CUcontext::NULL, CUcontext::NULL, CUcontext::NULL);
    // SAFETY: local outputs.
    unsafe {
        assert_eq!(cuCtxGetCurrent(&mut before), SUCCESS);
        assert_eq!(cuCtxCreate_v2(&mut created, 0, 0), full);
        assert_eq!(cuCtxGetCurrent(&mut after), SUCCESS);
    }
    assert!(created.is_null() && after == before);
    assert_eq!(launch(load(), [1; 3], [1; 3], CUstream::NULL), SUCCESS);
    assert_eq!(synchronize(), SUCCESS);
}

#[test]
fn managed_memory_of_a_graph_is_not_supported() {
    let _client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    // CUDA_MEM_ALLOC_NODE_PARAMS: kinds of allocation and handle, the device, and the size.
    let mut params = [0u64; 15];
    (params[0], params[1], params[13]) = (CU_MEM_ALLOCATION_TYPE_MANAGED.into(), 1, 4096);
    let (mut graph, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    // SAFETY: local outputs, and a record as CUDA has it.
    let added = unsafe {
        assert_eq!(cuGraphCreate(&mut graph, 0), SUCCESS);
        let record = params.as_mut_ptr().cast();
        cuGraphAddMemAllocNode(&mut node, graph, std::ptr::null(), 0, record)
    };
    assert_eq!(added, CUresult::CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn a_context_keeps_its_cache_preference() {
    let client = Client::start(Kind::Tcp, |_, _| Answer::Usual);
    let mut config = u32::MAX;
    // SAFETY: local outputs.
    unsafe {
        assert_eq!(cuCtxGetCacheConfig(&mut config), SUCCESS);
        assert_eq!(config, CU_FUNC_CACHE_PREFER_NONE);
        assert_eq!(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1), SUCCESS);
        assert_eq!(cuCtxSetCacheConfig(17), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuCtxGetCacheConfig(&mut config), SUCCESS);
    }
    assert_eq!(config, CU_FUNC_CACHE_PREFER_L1);
    assert_eq!(client.count("ContextCacheConfig"), 1);
}
