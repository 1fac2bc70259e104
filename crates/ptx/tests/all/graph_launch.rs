//! Kernels that launch graphs, as nvcc 13 writes the call: it reaches the execution.

use std::sync::Mutex;

use outboard_ptx::execution::Execution;

use crate::common::{Arg, Device, params};

const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 func_retval0) cudaGraphLaunch (.param .b64 p0, .param .b64 p1);
.visible .entry again(.param .u64 out) {
    .reg .b64 %rd<6>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, %current_graph_exec;
    st.global.u64 [%rd1], %rd2;
    mov.b64 %rd3, 72057594037927936;
    { .param .b64 param0; .param .b64 param1; .param .b32 retval0;
      st.param.b64 [param0], %rd2; st.param.b64 [param1], %rd3;
      call.uni (retval0), cudaGraphLaunch, (param0, param1);
      ld.param.b32 %r1, [retval0]; }
    st.global.u32 [%rd1+8], %r1;
    ret;
}";

struct Noted(Mutex<Vec<(u64, u64)>>);

impl Execution for Noted {
    fn current(&self) -> u64 {
        0x1234_5678_9abc_def0
    }

    fn launch(&self, handle: u64, stream: u64) -> u64 {
        self.0.lock().unwrap().push((handle, stream));
        69
    }

    fn start(&self) {}
}

#[test]
fn a_kernel_launches_the_graph_that_it_belongs_to() {
    let device = Device::new(PTX);
    let out = device.alloc(16);
    let noted = Noted(Mutex::default());
    let params = params(&[Arg::Ptr(out)]);
    let mut launch = device.launch("again", [1; 3], [1; 3], 0, &params);
    launch.execution = Some(&noted);
    launch.run().unwrap();
    assert_eq!(device.download::<u64>(out, 2), [0x1234_5678_9abc_def0, 69]);
    assert_eq!(*noted.0.lock().unwrap(), [(0x1234_5678_9abc_def0, 1 << 56)]);
}

#[test]
fn outside_of_graphs_there_is_none_to_launch() {
    let device = Device::new(PTX);
    let out = device.alloc(16);
    device.run("again", 1, 1, &[Arg::Ptr(out)]);
    assert_eq!(device.download::<u64>(out, 2), [0, 1]);
}
