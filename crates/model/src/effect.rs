//! Effects of driver calls on the GPU's work, from the attributes of their declarations.

/// Effect of a driver call on the work of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The program waits until the work is done.
    Waits(Subject),
    /// The program asks whether the work is done.
    Queries(Subject),
    /// Starts one kernel.
    Launches,
    /// Copies host memory to the device.
    CopiesToDevice,
    /// Copies, in another direction or in one that its arguments decide.
    Copies,
    /// Gives the GPU other work: a memset, a graph, a host function.
    Works,
    RecordsEvent,
    /// The stream waits for an event.
    AwaitsEvent,
    /// Is no work, but comes after and before the work of its stream.
    TakesTurn,
    /// Makes a module or a library.
    Loads,
    /// None that the model knows of.
    None,
}

/// The work for which a call waits or asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Context,
    Stream,
    Event,
}

include!(concat!(env!("OUT_DIR"), "/effects.rs"));

impl Effect {
    /// Returns the effect of an exported function.
    pub(crate) fn of(name: &str) -> Effect {
        match EFFECTS.binary_search_by_key(&name, |(known, _)| known) {
            Ok(index) => EFFECTS[index].1,
            Err(_) => Effect::None,
        }
    }

    pub(crate) fn is_copy(self) -> bool {
        matches!(self, Effect::CopiesToDevice | Effect::Copies)
    }

    pub(crate) fn starts_work(self) -> bool {
        self.is_copy() || matches!(self, Effect::Launches | Effect::Works)
    }

    /// Returns true if the call's place among the work of its stream matters.
    pub(crate) fn is_in_stream(self) -> bool {
        match self {
            Effect::RecordsEvent | Effect::AwaitsEvent | Effect::TakesTurn => true,
            _ => self.starts_work(),
        }
    }

    pub(crate) fn is_wait(self) -> bool {
        matches!(self, Effect::Waits(_))
    }
}

/// The effects of a recording's functions, by the numbers of their names.
#[derive(Debug)]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    pub(crate) fn new(names: &[String]) -> Effects {
        Effects(names.iter().map(|name| Effect::of(name)).collect())
    }

    pub(crate) fn of(&self, function: u32) -> Effect {
        let effect = self.0.get(function as usize);
        effect.copied().unwrap_or(Effect::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_found_by_every_exported_name() {
        assert!(EFFECTS.is_sorted_by(|(one, _), (next, _)| one < next));
        for (name, effect) in [
            ("cuStreamSynchronize", Effect::Waits(Subject::Stream)),
            ("cuStreamSynchronize_ptsz", Effect::Waits(Subject::Stream)),
            ("cuCtxSynchronize_v2", Effect::Waits(Subject::Context)),
            ("cuEventQuery", Effect::Queries(Subject::Event)),
            ("cuLaunchKernelEx", Effect::Launches),
            ("cuGraphLaunch", Effect::Works),
            ("cuMemcpyHtoD_v2_ptds", Effect::CopiesToDevice),
            ("cuMemcpyBatchAsync", Effect::Copies),
            ("cuMemsetD32Async", Effect::Works),
            ("cuEventRecordWithFlags", Effect::RecordsEvent),
            ("cuStreamWaitEvent", Effect::AwaitsEvent),
            ("cuMemAllocAsync", Effect::TakesTurn),
            // An older name.
            ("cuStreamWriteValue32", Effect::TakesTurn),
            ("cuLibraryLoadFromFile", Effect::Loads),
            ("cuCtxGetDevice", Effect::None),
            ("a function of a later version", Effect::None),
        ] {
            assert_eq!(Effect::of(name), effect, "{name}");
        }
    }
}
