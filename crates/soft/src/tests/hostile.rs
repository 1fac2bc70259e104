//! Wrong programs, broken clients, and GPU faults.

use outboard_api::enums::*;

use super::*;

const WILD: u64 = 0xdead_beef;

#[test]
fn wild_handles_are_errors() {
    let mut c = client();
    let wild = [
        Request::FenceStream(m::FenceStream {
            stream: WILD,
            slot: 0,
            value: 0,
        }),
        Request::FenceEvent(m::FenceEvent { event: WILD }),
        Request::StreamDestroy(m::StreamDestroy { stream: WILD }),
        Request::EventRecord(m::EventRecord {
            event: WILD,
            stream: 0,
            flags: 0,
        }),
        Request::StreamWaitEvent(m::StreamWaitEvent {
            stream: 0,
            event: WILD,
            flags: 0,
        }),
        Request::Launch(launch(WILD << 32, 1, 1, &[])),
        Request::Launch(launch(WILD, 1, 1, &[])),
        Request::GraphLaunch(m::GraphLaunch {
            exec: WILD,
            stream: 0,
        }),
        Request::GraphNodes(m::GraphNodes {
            graph: WILD,
            roots_only: 0,
            first_node: 1,
            nodes_max: 1,
        }),
        Request::GraphNodeType(m::GraphNodeType { node: WILD }),
        Request::LibraryUnload(m::LibraryUnload { library: WILD }),
        Request::LinkComplete(m::LinkComplete { link: WILD }),
        Request::ContextDestroy(m::ContextDestroy { context: WILD }),
        Request::AllocationRelease(m::AllocationRelease { allocation: WILD }),
        Request::HostFuncDone(m::HostFuncDone { call: WILD }),
        Request::ContextSetLimit(m::ContextSetLimit { limit: 0, value: 1 }),
    ];
    for request in wild {
        let expected = match request {
            Request::ContextSetLimit(_) => CUresult::CUDA_SUCCESS,
            _ => CUresult::CUDA_ERROR_INVALID_HANDLE,
        };
        assert_eq!(c.status(request.clone()), expected, "{request:?}");
    }
    // A number already in use.
    let again = m::ContextCreate {
        context: CONTEXT,
        device: 0,
        flags: 0,
    };
    assert_eq!(
        c.status(Request::ContextCreate(again)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
    let nowhere = m::ContextCreate {
        context: 7,
        device: 1,
        flags: 0,
    };
    assert_eq!(
        c.status(Request::ContextCreate(nowhere)),
        CUresult::CUDA_ERROR_INVALID_DEVICE
    );
    c.sync().unwrap();
}

#[test]
fn a_copy_to_nowhere_is_refused_and_does_no_harm() {
    let mut c = client();
    for (dst, src, len) in [
        (0x1000, c.base, 8),
        (c.base, 0x1000, 8),
        (c.base, c.base + (4 << 20) - 4, 8),
        (c.base, c.base, u64::MAX),
    ] {
        let copy = m::Copy {
            dst,
            src,
            len,
            stream: 0,
            sync: 0,
        };
        assert_eq!(
            c.status(Request::Copy(copy)),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
    }
    let out = m::CopyOut {
        src: c.base,
        len: 2 << 20,
        stream: 0,
    };
    assert_eq!(
        c.status(Request::CopyOut(out)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    let cut = m::CopyBox {
        stream: 0,
        desc: &[1, 2, 3],
    };
    assert_eq!(
        c.status(Request::CopyBox(cut)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    let cut = m::StreamMemOps {
        stream: 0,
        ops: &[0; 47],
        flags: 0,
    };
    assert_eq!(
        c.status(Request::StreamMemOps(cut)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    c.sync().unwrap();
}

#[test]
fn a_wild_pointer_in_a_kernel_ends_the_context_for_good() {
    let mut c = client();
    let kernel = c.kernels();
    let arguments: Vec<u8> = [0x1234_5678u64.to_le_bytes().as_slice(), &[1, 0, 0, 0]].concat();
    c.done(Request::Launch(launch(kernel("store"), 1, 1, &arguments)));
    let failure = c.sync().unwrap_err();
    assert_eq!(failure.status, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(
        failure.message.contains("store") && failure.message.contains("0x12345678"),
        "{failure}"
    );
    for _ in 0..2 {
        assert_eq!(c.sync().unwrap_err(), failure);
        assert_eq!(c.read(c.base, 4).unwrap_err(), failure);
        assert_eq!(
            c.status(Request::Launch(launch(kernel("spin"), 1, 1, &[]))),
            failure.status
        );
    }
    // A new context is free of the fault.
    c.done(Request::ContextDestroy(m::ContextDestroy {
        context: CONTEXT,
    }));
    c.done(Request::PrimaryContextRetain(m::PrimaryContextRetain {
        context: CONTEXT,
        device: 0,
    }));
    c.write_words(c.base, &[8]);
    assert_eq!(c.read_words(c.base, 1), [8]);
}

#[test]
fn faults_have_their_numbers() {
    for (name, arguments, status) in [
        (
            "store",
            params(&[2, 0]),
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        ),
        ("stop", vec![], CUresult::CUDA_ERROR_LAUNCH_FAILED),
    ] {
        let mut c = client();
        let kernel = c.kernels();
        let mut arguments = arguments;
        if name == "store" {
            arguments[..8].copy_from_slice(&(c.base + 2).to_le_bytes());
        }
        c.done(Request::Launch(launch(kernel(name), 1, 1, &arguments)));
        assert_eq!(c.sync().unwrap_err().status, status, "{name}");
    }
}

#[test]
fn launches_are_checked_at_the_call() {
    let mut c = client();
    let kernel = c.kernels();
    let arguments = params(&[c.base, 0]);
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    for (request, status) in [
        (launch(kernel("store"), 0, 1, &arguments), bad),
        (launch(kernel("store"), 1, 0, &arguments), bad),
        (launch(kernel("store"), 1, 1025, &arguments), bad),
        (launch(kernel("store"), 0x8000_0000, 1, &arguments), bad),
        (launch(kernel("store"), 1, 1, &arguments[..8]), bad),
        (launch(kernel("small_blocks"), 1, 65, &[]), bad),
    ] {
        assert_eq!(
            c.status(Request::Launch(request.clone())),
            status,
            "{request:?}"
        );
    }
    let attribute = |id: u32, value: u32| {
        let mut record = [0; doc::LAUNCH_ATTRIBUTE_BYTES];
        record[..4].copy_from_slice(&id.to_le_bytes());
        record[8..12].copy_from_slice(&value.to_le_bytes());
        record
    };
    let cluster = attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2);
    let cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1);
    let unknown = attribute(999, 0);
    for (attributes, blocks, status) in [
        (&cluster[..], 2, CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (&unknown[..], 2, CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (&cluster[..71], 2, bad),
        (
            &cooperative[..],
            100_000,
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        ),
        (&cooperative[..], 2, CUresult::CUDA_SUCCESS),
    ] {
        let mut request = launch(kernel("small_blocks"), blocks, 64, &[]);
        request.attributes = attributes;
        assert_eq!(c.status(Request::Launch(request)), status, "{attributes:?}");
    }
    c.sync().unwrap();
}

#[test]
fn images_that_cannot_run_are_refused_with_a_reason() {
    let mut c = client();
    let (_, status, log, _) = c.load(b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n  frobnicate.u32;\n}\n");
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(log.contains("line 5"), "{log}");
    let (_, status, log, _) = c.load(b".version 8.0\n.target sm_90\n.address_size 64\n");
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(log.contains("90"), "{log}");
    assert!(log.contains("--capability 9.0"), "{log}");
    let (_, status, log, _) = c.load(include_bytes!("../../../image/tests/data/sm_90.cubin"));
    assert_eq!(status, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(
        log.contains("sm_90") && !log.contains("--capability"),
        "{log}"
    );
    let (_, status, _, _) = c.load(b"\x7fELF and nothing else");
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_IMAGE);
    let missing = m::LibraryLoad {
        library: 5,
        hash: &[0; 32],
        len: 100,
        options: &[],
    };
    // The image must be sent first; no library was made.
    let (_, reply) = c.send(&Request::LibraryLoad(missing)).unwrap();
    let reply = m::LibraryLoadReply::decode(&mut Reader::new(&reply)).unwrap();
    assert_eq!((reply.missing, reply.card.len()), (1, 0));
    let unload = m::LibraryUnload { library: 5 };
    assert!(c.send(&Request::LibraryUnload(unload)).is_err());
    // A fat binary with PTX that fits runs.
    let (_, status, log, card) = c.load(include_bytes!("../../../image/tests/data/compute_80.ptx"));
    assert!(
        status == CUresult::CUDA_SUCCESS && !card.kernels.is_empty(),
        "{log}"
    );
}

#[test]
fn what_is_not_there_says_so() {
    let mut c = client();
    let request = Request::TensorMapEncode(m::TensorMapEncode {
        kind: 0,
        arguments: &[],
    });
    let Err(failure) = c.send(&request).map(|_| ()) else {
        panic!("{request:?} worked");
    };
    assert_eq!(failure.status, CUresult::CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn levels_go_with_their_mipmapped_array() {
    let mut c = client();
    let size = [8u64, 4, 0].iter().flat_map(|n| n.to_le_bytes());
    let words = [0x20u32, 1, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes());
    let record: Vec<u8> = size.chain(words).collect();
    c.done(Request::CuMipmappedArrayCreate(m::CuMipmappedArrayCreate {
        p_handle: 3,
        p_mipmapped_array_desc: &record,
        num_mipmap_levels: 99,
    }));
    let level = |number: u32| {
        Request::CuMipmappedArrayGetLevel(m::CuMipmappedArrayGetLevel {
            p_level_array: 10 + u64::from(number),
            h_mipmapped_array: 3,
            level: number,
        })
    };
    // Levels of 8, 4, 2 and 1 texels; never more, even if more are asked for.
    c.done(level(0));
    c.done(level(3));
    let mut fails = |request: Request<'_>, status| {
        let failed = c.send(&request).map(|_| ());
        assert_eq!(failed.unwrap_err().status, status, "{request:?}");
    };
    fails(level(4), CUresult::CUDA_ERROR_INVALID_VALUE);
    let destroy = Request::CuArrayDestroy(m::CuArrayDestroy { h_array: 13 });
    fails(destroy, CUresult::CUDA_ERROR_INVALID_HANDLE);
    let gone = Request::CuMipmappedArrayDestroy(m::CuMipmappedArrayDestroy {
        h_mipmapped_array: 3,
    });
    c.done(gone);
    let describe = m::CuArray3DGetDescriptorV2 { h_array: 13 };
    let failed = c
        .send(&Request::CuArray3DGetDescriptorV2(describe))
        .map(|_| ());
    assert_eq!(
        failed.unwrap_err().status,
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const FLOAT: u32 = 0x20;

/// Encodes an array's descriptor: width, height, depth; format, channels, flags.
fn array(size: [u64; 3], words: [u32; 3]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    let size = size.iter().flat_map(|n| n.to_le_bytes());
    size.chain(words).chain([0; 4]).collect()
}

/// Encodes a resource: kind and handle or address; format, channels, size.
fn resource(kind: u32, handle: u64, words: [u32; 2], sizes: [u64; 3]) -> Vec<u8> {
    let mut record = vec![0; 144];
    record[..4].copy_from_slice(&kind.to_le_bytes());
    record[8..16].copy_from_slice(&handle.to_le_bytes());
    for (i, word) in words.iter().enumerate() {
        record[16 + 4 * i..20 + 4 * i].copy_from_slice(&word.to_le_bytes());
    }
    for (i, size) in sizes.iter().enumerate() {
        record[24 + 8 * i..32 + 8 * i].copy_from_slice(&size.to_le_bytes());
    }
    record
}

/// Encodes a sampler: address mode of x, filter, flags.
fn sampler(mode: u32, filter: u32, flags: u32) -> Vec<u8> {
    let mut record = vec![0; 104];
    for (at, word) in [(0, mode), (12, filter), (16, flags)] {
        record[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    record
}

/// Makes array 9, of floats and without the flag for surfaces.
fn make_array(c: &mut Client) {
    let create = m::CuArray3DCreateV2 {
        p_handle: 9,
        p_allocate_array: &array([4, 4, 0], [FLOAT, 1, 0]),
    };
    c.done(Request::CuArray3DCreateV2(create));
}

#[test]
fn descriptors_of_arrays_are_checked() {
    let mut c = client();
    for (record, status) in [
        (array([0, 0, 0], [FLOAT, 1, 0]), INVALID),
        (array([4, 0, 4], [FLOAT, 1, 0]), INVALID),
        (array([4, 4, 0], [FLOAT, 1, 1]), INVALID),
        (array([4, 4, 2049], [FLOAT, 1, 1]), INVALID),
        (array([u64::MAX, 1, 1], [FLOAT, 1, 0]), INVALID),
        (array([1 << 20, 1, 0], [FLOAT, 1, 0]), INVALID),
        (
            array([16384, 16384, 16384], [FLOAT, 4, 0]),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        ),
        (array([4, 4, 0], [FLOAT, 3, 0]), INVALID),
        (array([4, 4, 5], [FLOAT, 1, 4]), INVALID),
        (array([4, 5, 6], [FLOAT, 1, 4]), INVALID),
        (array([4, 4, 8], [FLOAT, 1, 5]), INVALID),
        (array([4, 4, 0], [FLOAT, 1, 0x10]), UNSUPPORTED),
        (array([4, 4, 0], [0xb0, 1, 0]), UNSUPPORTED),
        (array([4, 4, 0], [FLOAT, 1, 0])[..39].to_vec(), INVALID),
    ] {
        let create = m::CuArray3DCreateV2 {
            p_handle: 9,
            p_allocate_array: &record,
        };
        let failed = c.send(&Request::CuArray3DCreateV2(create)).map(|_| ());
        assert_eq!(failed.unwrap_err().status, status, "{record:?}");
    }
}

#[test]
fn descriptors_of_textures_are_checked() {
    let mut c = client();
    make_array(&mut c);
    let good = resource(0, 9, [0; 2], [0; 3]);
    let plain = sampler(1, 0, 0);
    for (resource, sampler, status) in [
        (
            resource(0, 8, [0; 2], [0; 3]),
            plain.clone(),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
        ),
        (
            resource(1, 9, [0; 2], [0; 3]),
            plain.clone(),
            CUresult::CUDA_ERROR_INVALID_HANDLE,
        ),
        (resource(4, 9, [0; 2], [0; 3]), plain.clone(), INVALID),
        (
            resource(2, 100, [FLOAT, 1], [64, 0, 0]),
            plain.clone(),
            INVALID,
        ),
        (
            resource(2, 512, [FLOAT, 1], [0, 0, 0]),
            plain.clone(),
            INVALID,
        ),
        (
            resource(2, 512, [FLOAT, 1], [u64::MAX, 0, 0]),
            plain.clone(),
            INVALID,
        ),
        (
            resource(3, 512, [FLOAT, 1], [16, 2, 60]),
            plain.clone(),
            INVALID,
        ),
        (
            resource(3, 512, [FLOAT, 1], [16, u64::MAX, 64]),
            plain.clone(),
            INVALID,
        ),
        (
            resource(3, 512, [3, 1], [16, 2, 64]),
            sampler(1, 1, 0),
            INVALID,
        ),
        (good.clone(), sampler(4, 0, 0), INVALID),
        (good.clone(), sampler(1, 2, 0), INVALID),
        (good.clone(), sampler(1, 0, 0x80), UNSUPPORTED),
        (good[..143].to_vec(), plain.clone(), INVALID),
        (good.clone(), plain[..103].to_vec(), INVALID),
    ] {
        let create = m::TextureCreate {
            texture: 7,
            resource: &resource,
            sampler: &sampler,
            view: &[],
        };
        let failed = c.send(&Request::TextureCreate(create)).map(|_| ());
        assert_eq!(
            failed.unwrap_err().status,
            status,
            "{:?} {:?}",
            &resource[..48],
            &sampler[..20]
        );
    }
}

#[test]
fn an_array_without_the_flag_makes_no_surface_and_is_freed_once() {
    let mut c = client();
    make_array(&mut c);
    let create = m::SurfaceCreate {
        surface: 7,
        resource: &resource(0, 9, [0; 2], [0; 3]),
    };
    let failed = c.send(&Request::SurfaceCreate(create)).map(|_| ());
    assert_eq!(failed.unwrap_err().status, INVALID);
    c.done(Request::CuArrayDestroy(m::CuArrayDestroy { h_array: 9 }));
    let failed = c.send(&Request::CuArrayDestroy(m::CuArrayDestroy { h_array: 9 }));
    assert!(failed.is_err());
}

#[test]
fn an_endless_kernel_ends_with_its_session() {
    let mut c = client();
    let kernel = c.kernels();
    c.done(Request::Launch(launch(kernel("spin"), 64, 32, &[])));
    c.done(Request::HostFunc(m::HostFunc { stream: 0, call: 1 }));
    let start = Instant::now();
    drop(c);
    assert!(start.elapsed() < Duration::from_secs(5));
}
