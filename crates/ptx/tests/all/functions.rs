//! Kernels of `data/functions.cu`: calls, stacks, initialised memory, the device runtime, faults.
//! Also as `nvcc -G` compiles them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Arg, Device};
use outboard_ptx::{Fault, FaultKind, LaunchError, Printed};

const RELEASE: &str = include_str!("data/functions.ptx");
const DEBUG: &str = include_str!("data/functions_debug.ptx");
const BOTH: [&str; 2] = [RELEASE, DEBUG];

fn fault(result: Result<outboard_ptx::Stats, LaunchError>) -> Fault {
    match result {
        Err(LaunchError::Fault(fault)) => fault,
        other => panic!("no fault: {other:?}"),
    }
}

#[test]
fn constant_memory() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let offsets = device.module.global("offsets").unwrap();
        assert_eq!((offsets.bytes, offsets.constant), (32, true));
        let values: Vec<u8> = (0..8).flat_map(|i: i32| (i * 10).to_le_bytes()).collect();
        device.memory.write(offsets.address, &values).unwrap();
        let x: Vec<f32> = (0..40).map(|i| i as f32 * 0.25).collect();
        let (px, py) = (device.upload(&x), device.alloc(160));
        device.run(
            "polynomial",
            1,
            64,
            &[Arg::Ptr(px), Arg::Ptr(py), Arg::I32(40)],
        );
        for (i, (x, y)) in x.iter().zip(device.download::<f32>(py, 40)).enumerate() {
            // Quarters up to 10: every step is exact.
            let expected = ((x - 2.0) * x + 0.5) * x + 3.0 + (i % 8 * 10) as f32;
            assert_eq!(y, expected);
        }
    }
}

#[test]
fn initialised_globals_and_their_addresses() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let out = device.alloc(12);
        device.run("globals", 1, 1, &[Arg::Ptr(out)]);
        assert_eq!(device.download::<i32>(out, 3), [41, 40, 20]);
        let counter = device.module.global("counter").unwrap();
        assert_eq!(device.download::<i32>(counter.address, 1), [42]);
    }
}

#[test]
fn arrays_in_local_memory() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let input: Vec<i32> = (0..100).map(|i| i * 37 % 101).collect();
        let (pi, po) = (device.upload(&input), device.alloc(64 * 4));
        device.run(
            "local_array",
            1,
            64,
            &[Arg::Ptr(pi), Arg::Ptr(po), Arg::I32(100)],
        );
        let expected: Vec<i32> = (0..64)
            .map(|i| {
                let mut ring: Vec<i32> = (0..16).map(|k| input[(i + k) % 100]).collect();
                ring.sort_unstable();
                ring[i & 15]
            })
            .collect();
        assert_eq!(device.download::<i32>(po, 64), expected);
    }
}

#[test]
fn recursion_with_lanes_apart() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let out = device.alloc(64 * 4);
        device.run("recursion", 1, 64, &[Arg::Ptr(out)]);
        let fibonacci = |n: u32| (0..n).fold((0u32, 1u32), |(a, b), _| (b, a + b)).0;
        let expected: Vec<u32> = (0..64).map(|t| fibonacci(t % 15)).collect();
        assert_eq!(device.download::<u32>(out, 64), expected);
    }
}

#[test]
fn structures_by_value() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let out = device.alloc(40 * 8);
        device.run("aggregates", 1, 40, &[Arg::Ptr(out)]);
        // a + (a / 2) * 2 - a
        let expected: Vec<f64> = (1..=40).map(f64::from).collect();
        assert_eq!(device.download::<f64>(out, 40), expected);
    }
}

#[test]
fn function_pointers_and_virtual_functions() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let out = device.alloc(64 * 4);
        device.run("pointers", 1, 64, &[Arg::Ptr(out), Arg::I32(5)]);
        let expected: Vec<i32> = (0..64)
            .map(|t| [t + 5, t * 5, t - 5][t as usize % 3])
            .collect();
        assert_eq!(device.download::<i32>(out, 64), expected);
        device.run("virtuals", 1, 64, &[Arg::Ptr(out)]);
        let expected: Vec<f32> = (0..64)
            .map(|t| (t * t * if t % 2 == 1 { 3 } else { 1 }) as f32)
            .collect();
        assert_eq!(device.download::<f32>(out, 64), expected);
    }
}

#[test]
fn printf_from_lanes() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let name = device.upload(b"gpu\0");
        device.run("say", 1, 32, &[Arg::Ptr(name), Arg::I32(3)]);
        let expected = "[0] gpu  0.00 0   | 0 a 0 %\n[1] gpu  1.50 7   | -5000000000 b 0x1 %\n[2] gpu  3.00 14  | -10000000000 c 0x2 %\n";
        let mut printed = Printed::default();
        device.output.take(&mut printed);
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
        assert!(printed.stderr.is_empty());
    }
}

#[test]
fn malloc_and_free() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let out = device.alloc(96 * 4);
        for _ in 0..3 {
            device.run("lists", 1, 96, &[Arg::Ptr(out)]);
            let expected: Vec<i32> = (0..96).map(|t| t * (t + 1) / 2).collect();
            assert_eq!(device.download::<i32>(out, 96), expected);
        }
    }
}

#[test]
fn failed_assertion() {
    for ptx in BOTH {
        let device = Device::new(ptx);
        let mut input = vec![1i32; 64];
        input[40] = -1;
        let pi = device.upload(&input);
        let fault = fault(device.try_run("check", [2, 1, 1], [64, 1, 1], 0, &[Arg::Ptr(pi)]));
        assert_eq!(
            (fault.block, fault.thread, fault.kernel.as_str()),
            ([0; 3], [40, 0, 0], "check")
        );
        let FaultKind::Assert { message } = &fault.kind else {
            panic!("{fault}")
        };
        assert!(
            message.starts_with("functions.cu:")
                && message.contains("thread: [40,0,0] Assertion `in[threadIdx.x] >= 0` failed."),
            "{message}"
        );
        device.memory.write(pi, &vec![0; 256]).unwrap();
        device.run("check", 2, 64, &[Arg::Ptr(pi)]);
    }
}

#[test]
fn trap_names_the_thread_and_line() {
    let device = Device::new(RELEASE);
    let mut input = vec![0i32; 32];
    input[7] = -1;
    let pi = device.upload(&input);
    let fault = fault(device.try_run("trap_if", [1; 3], [32, 1, 1], 0, &[Arg::Ptr(pi)]));
    assert!(matches!(fault.kind, FaultKind::Trap { .. }));
    assert_eq!(fault.thread, [7, 0, 0]);
    let line = RELEASE.lines().nth(fault.line as usize - 1).unwrap();
    assert_eq!(line.trim(), "trap;");
}

#[test]
fn wild_accesses() {
    let device = Device::new(RELEASE);
    let p = device.alloc(100 * 4);
    let run = |pointer: u64, offset: i64| {
        device.try_run(
            "wild",
            [1; 3],
            [64, 1, 1],
            0,
            &[Arg::Ptr(pointer), Arg::I64(offset)],
        )
    };
    run(p, 36).unwrap();
    let past_the_end = fault(run(p, 37));
    assert_eq!(
        past_the_end.kind,
        FaultKind::IllegalAddress {
            address: p + 400,
            bytes: 4,
            write: true
        }
    );
    assert_eq!(past_the_end.thread, [63, 0, 0]);
    assert!(
        RELEASE
            .lines()
            .nth(past_the_end.line as usize - 1)
            .unwrap()
            .contains("st.global.u32")
    );
    let null = fault(run(0, 0));
    assert_eq!(
        null.kind,
        FaultKind::IllegalAddress {
            address: 0,
            bytes: 4,
            write: true
        }
    );
    // Differences of such an address and the device's own do not fit 64 bits.
    for far in [1 << 63, !3u64] {
        let kind = fault(run(far, 0)).kind;
        assert!(matches!(kind, FaultKind::IllegalAddress { .. }), "{kind:?}");
    }
    let odd = fault(run(p + 2, 0));
    assert_eq!(
        odd.kind,
        FaultKind::MisalignedAddress {
            address: p + 2,
            bytes: 4,
            write: true
        }
    );
    // Unregistered host memory is as invalid as any other address.
    let host = Box::new([0u32; 64]);
    let address = host.as_ptr() as u64;
    assert_eq!(
        fault(run(address, 0)).kind,
        FaultKind::IllegalAddress {
            address,
            bytes: 4,
            write: true
        }
    );
}

#[test]
fn registered_host_memory() {
    let device = Device::new(RELEASE);
    let mut host = vec![0u32; 64];
    let address = host.as_mut_ptr() as u64;
    // SAFETY: `host` outlives the launch and the registration.
    unsafe { device.memory.register_host(address, 256).unwrap() };
    device.run("wild", 1, 64, &[Arg::Ptr(address), Arg::I64(0)]);
    device.memory.unregister_host(address).unwrap();
    // SAFETY: the pointer is to a live `u32`, which the kernel has written without the compiler's
    // knowledge.
    let first = unsafe { std::ptr::read_volatile(address as *const u32) };
    assert_eq!(first, 1);
    assert_eq!(host[63], 1);
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let device = Device::new(RELEASE);
    let out = device.alloc(4);
    let fault = fault(device.try_run("endless_recursion", [1; 3], [1; 3], 0, &[Arg::Ptr(out)]));
    assert!(
        matches!(fault.kind, FaultKind::StackOverflow { .. }),
        "{fault}"
    );
}

#[test]
fn an_endless_kernel_can_be_cancelled_or_released() {
    let device = Device::new(RELEASE);
    let flag = device.alloc(4);
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| device.try_run("forever", [5, 1, 1], [64, 1, 1], 0, &[Arg::Ptr(flag)]));
        std::thread::sleep(Duration::from_millis(50));
        device.cancel.store(true, Ordering::Relaxed);
        assert_eq!(
            fault(running.join().unwrap()).kind,
            FaultKind::LaunchTimeout
        );
    });
    device.cancel.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| device.try_run("forever", [5, 1, 1], [64, 1, 1], 0, &[Arg::Ptr(flag)]));
        // Mapping waits for time slices, not for the kernel.
        device.alloc(1 << 20);
        device.memory.write(flag, &[1]).unwrap();
        running.join().unwrap().unwrap();
    });
}

#[test]
fn the_lowest_faulting_block_is_reported() {
    for _ in 0..20 {
        let device = Device::new(RELEASE);
        let fault = fault(device.try_run(
            "wild",
            [50, 1, 1],
            [32, 1, 1],
            0,
            &[Arg::Ptr(0), Arg::I64(0)],
        ));
        assert_eq!((fault.block, fault.thread), ([0; 3], [0; 3]));
    }
}
