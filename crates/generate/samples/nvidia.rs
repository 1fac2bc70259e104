// A sample of generated code; `make samples` writes it.

impl Driver {
    /// # Safety
    /// The memory named is the session's, and of the length that the call says.
    #[inline]
    pub(super) unsafe fn cuMemsetD8Async(
        &self,
        p0: u64,
        p1: u8,
        p2: u64,
        p3: real::Stream,
    ) -> Result<(), Refused> {
        let function = self
            .table
            .cuMemsetD8Async
            .ok_or(Refused::missing("cuMemsetD8Async"))?;
        // SAFETY: the declared signature; outputs have room, handles came from this driver.
        let result = unsafe { function(p0, p1, p2, p3) };
        Refused::check("cuMemsetD8Async", result)?;
        Ok(())
    }
}
impl Device for Nvidia {
    fn cu_memset_d8_async(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuMemsetD8Async,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        self.settable(m.dst_device, m.n, m.h_stream)?;
        let h_stream = self.real_stream(m.h_stream)?;
        // SAFETY: the addresses are the session's, or those of captured work that never runs.
        unsafe { self.driver.cuMemsetD8Async(m.dst_device, m.uc, m.n, h_stream) }?;
        Ok(())
    }
}
