// A sample of generated code; `make samples` writes it.

pub trait Device: Host {
    /// `cuMemsetD8Async`
    #[allow(unused_variables)]
    fn cu_memset_d8_async(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuMemsetD8Async,
    ) -> Result<(), Failure> {
        Err(Failure::unsupported("cuMemsetD8Async"))
    }
    /// `copy_in`
    #[allow(unused_variables)]
    fn copy_in(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyIn<'_>,
    ) -> Result<(), Failure> {
        Err(Failure::unsupported("copy_in"))
    }
    /// `event_elapsed`
    #[allow(unused_variables)]
    fn event_elapsed(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventElapsed,
    ) -> Result<messages::EventElapsedReply, Failure> {
        Err(Failure::unsupported("event_elapsed"))
    }
}
