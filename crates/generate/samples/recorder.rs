// A sample of generated code; `make samples` writes it.

/// # Safety
/// As the driver asks.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemsetD8Async(
    dst_device: CUdeviceptr,
    uc: u8,
    n: usize,
    h_stream: CUstream,
) -> CUresult {
    // SAFETY: the driver's function of this name; the caller's promise is passed on.
    guard::pass(Passed {
        number: 0,
        subject: || Subject {
            stream: Some(h_stream).map_or(0, |stream| stream.0 as u64),
            event: 0,
            is_destroyed: false,
        },
        delay: || {
            pcie::work(Some(h_stream));
        },
        // SAFETY: the slot has this function; the program's arguments are passed on.
        call: || unsafe {
            let real: unsafe extern "C" fn(
                CUdeviceptr,
                u8,
                usize,
                CUstream,
            ) -> CUresult = std::mem::transmute(SLOTS[0].load(Ordering::Relaxed));
            real(dst_device, uc, n, h_stream)
        },
        // SAFETY: the program's arguments, as the driver's function takes them.
        work: (Some(h_stream), || unsafe { events::memset(n.saturating_mul(1)) }),
        // SAFETY: the program's arguments, as the driver's function takes them.
        cost: || unsafe { CALLS[0].1 },
    })
}
/// # Safety
/// As the driver asks.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    // SAFETY: the driver's function of this name; the caller's promise is passed on.
    guard::pass(Passed {
        number: 0,
        subject: || Subject {
            stream: 0,
            event: 0,
            is_destroyed: false,
        },
        delay: || {},
        // SAFETY: the slot has this function; the program's arguments are passed on.
        call: || unsafe {
            let real: unsafe extern "C" fn(
                CUgraphExec,
                CUgraphNode,
                *const CUDA_KERNEL_NODE_PARAMS,
            ) -> CUresult = std::mem::transmute(SLOTS[0].load(Ordering::Relaxed));
            real(h_graph_exec, h_node, node_params)
        },
        // SAFETY: the program's arguments, as the driver's function takes them.
        work: (None, || unsafe { None }),
        // SAFETY: the program's arguments, as the driver's function takes them.
        cost: || unsafe { CALLS[0].1 },
    })
}
/// # Safety
/// The caller's business with the driver.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn cuGraphAddExternalSemaphoresWaitNode() {
    std::arch::naked_asm!(
        "mov rax, qword ptr [rip + {slots} + 0]", "jmp rax", slots = sym SLOTS
    )
}
