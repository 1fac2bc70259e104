// A sample of generated code; `make samples` writes it.

/// # Safety
/// Pointers are valid as the driver API's manual asks of a caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    dst_device: CUdeviceptr,
    uc: u8,
    n: usize,
    h_stream: CUstream,
) -> CUresult {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Params(CUdeviceptr, u8, usize, CUstream);
    // SAFETY: the arguments are as the manual asks, and the serving function asks no more.
    guard::enter(
        0,
        || [Named::of_stream(Some(h_stream)), Named::Address(dst_device)],
        || Subject {
            stream: Some(h_stream).map_or(0, |stream| stream.0 as u64),
            event: 0,
            is_destroyed: false,
        },
        || Params(dst_device, uc, n, h_stream),
        || unsafe { derived__cuMemsetD8Async(dst_device, uc, n, h_stream) },
    )
}
/// # Safety
/// Pointers are valid as the driver API's manual asks of a caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Params(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS);
    // SAFETY: the arguments are as the manual asks, and the serving function asks no more.
    guard::enter(
        0,
        || [Named::Handle(h_graph_exec.0 as u64), Named::Handle(h_node.0 as u64)],
        || Subject {
            stream: 0,
            event: 0,
            is_destroyed: false,
        },
        || Params(h_graph_exec, h_node, node_params),
        || unsafe {
            calls::set_exec_node(
                h_graph_exec,
                h_node,
                |driver| calls::given::kernel(driver, Argument::from_c(node_params)),
            )
        },
    )
}
/// # Safety
/// None needed: the call is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddExternalSemaphoresWaitNode() -> CUresult {
    guard::unsupported(0)
}
pub(crate) mod derived_cuMemsetD8Async {
    use super::*;
    pub(crate) unsafe fn cuMemsetD8Async(
        dst_device: CUdeviceptr,
        uc: u8,
        n: usize,
        h_stream: CUstream,
    ) -> Result<(), CUresult> {
        let driver = driver()?;
        let Some(_) = driver
            .check_memset(dst_device, 1, 0 as u64, [n as u64, 1 as u64], Some(h_stream))?
        else {
            return Ok(());
        };
        let resolved;
        let message = messages::CuMemsetD8Async {
            dst_device: dst_device as u64,
            uc: uc as u8,
            n: n as u64,
            h_stream: {
                resolved = driver.work_stream(h_stream)?;
                resolved.wire()
            },
        };
        driver.submit_to(&resolved, &message)?;
        Ok(())
    }
}
pub(crate) use derived_cuMemsetD8Async::cuMemsetD8Async as derived__cuMemsetD8Async;
