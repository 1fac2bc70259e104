// A sample of generated code; `make samples` writes it.

/// `copy_in`, as declared.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, PartialEq)]
pub struct CopyIn<'a> {
    pub dst: u64,
    pub stream: u64,
    pub sync: u32,
    pub data: Data<'a>,
}
impl<'a> Encode for CopyIn<'a> {
    const NAME: &'static str = "copy_in";
    #[inline]
    fn encoded_len(&self) -> usize {
        24 + self.data.len()
    }
    #[inline(always)]
    #[allow(unused_variables)]
    fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let mut scalars = [0; 20];
        scalars[0..8].copy_from_slice(&self.dst.to_le_bytes());
        scalars[8..16].copy_from_slice(&self.stream.to_le_bytes());
        scalars[16..20].copy_from_slice(&self.sync.to_le_bytes());
        room.put(&scalars)?;
        room.put_field(&self.data)?;
        Ok(())
    }
}
impl<'a> Message<'a> for CopyIn<'a> {
    #[allow(unused_variables)]
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let dst = u64::from_le_bytes(r.take("copy_in")?);
        let stream = u64::from_le_bytes(r.take("copy_in")?);
        let sync = u32::from_le_bytes(r.take("copy_in")?);
        let data = r.data("copy_in")?;
        Ok(CopyIn { dst, stream, sync, data })
    }
}
/// `CopyIn`, as declared.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, PartialEq)]
pub struct CopyInReply {}
impl Encode for CopyInReply {
    const NAME: &'static str = "CopyIn";
    #[inline]
    fn encoded_len(&self) -> usize {
        0
    }
    #[inline(always)]
    #[allow(unused_variables)]
    fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        Ok(())
    }
}
impl<'a> Message<'a> for CopyInReply {
    #[allow(unused_variables)]
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(CopyInReply {})
    }
}
impl<'a> Op<'a> for CopyIn<'a> {
    const NUMBER: u16 = 0;
    const ANSWER: Answer = Answer::Never;
    type Reply<'r> = CopyInReply;
    const HAS_DATA: bool = true;
    fn encode_head(
        &self,
        room: &mut impl Room,
    ) -> Result<Option<&'a [u8]>, EncodeError> {
        room.put(&self.dst.to_le_bytes())?;
        room.put(&self.stream.to_le_bytes())?;
        room.put(&self.sync.to_le_bytes())?;
        room.put(&(self.data.len() as u32).to_le_bytes())?;
        self.data.here().ok_or(EncodeError::NoContent).map(Some)
    }
}
/// `event_elapsed`, as declared.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, PartialEq)]
pub struct EventElapsed {
    pub start: u64,
    pub end: u64,
}
impl Encode for EventElapsed {
    const NAME: &'static str = "event_elapsed";
    #[inline]
    fn encoded_len(&self) -> usize {
        16
    }
    #[inline(always)]
    #[allow(unused_variables)]
    fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let mut scalars = [0; 16];
        scalars[0..8].copy_from_slice(&self.start.to_le_bytes());
        scalars[8..16].copy_from_slice(&self.end.to_le_bytes());
        room.put(&scalars)?;
        Ok(())
    }
}
impl<'a> Message<'a> for EventElapsed {
    #[allow(unused_variables)]
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let start = u64::from_le_bytes(r.take("event_elapsed")?);
        let end = u64::from_le_bytes(r.take("event_elapsed")?);
        Ok(EventElapsed { start, end })
    }
}
/// `EventElapsed`, as declared.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, PartialEq)]
pub struct EventElapsedReply {
    pub milliseconds: f32,
}
impl Encode for EventElapsedReply {
    const NAME: &'static str = "EventElapsed";
    #[inline]
    fn encoded_len(&self) -> usize {
        4
    }
    #[inline(always)]
    #[allow(unused_variables)]
    fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let mut scalars = [0; 4];
        scalars[0..4].copy_from_slice(&self.milliseconds.to_le_bytes());
        room.put(&scalars)?;
        Ok(())
    }
}
impl<'a> Message<'a> for EventElapsedReply {
    #[allow(unused_variables)]
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let milliseconds = f32::from_le_bytes(r.take("EventElapsed")?);
        Ok(EventElapsedReply { milliseconds })
    }
}
impl<'a> Op<'a> for EventElapsed {
    const NUMBER: u16 = 0;
    const ANSWER: Answer = Answer::AtOnce;
    type Reply<'r> = EventElapsedReply;
}
