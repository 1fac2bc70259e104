//! Advice on how to make calls of a kind cheaper.

use outboard_api::decl::Class;

use crate::{Mode, effect::Effect};

pub(crate) fn advice(function: &str, class: Class, mode: Mode) -> String {
    let effect = Effect::of(function);
    let text = match (mode, class) {
        (Mode::Local, _) => "nothing: it is answered locally",
        (Mode::Async, _) if effect == Effect::CopiesToDevice => {
            "not waited for; its bytes take the link: send less, or sooner"
        }
        (Mode::Async, _) if effect == Effect::Launches => {
            "not waited for; a CUDA graph makes one call of many"
        }
        (Mode::Async, _) => "not waited for; fewer calls",
        (Mode::Sync, Class::Local) => "or+sr+local answers it locally",
        (Mode::Sync, Class::Shadowed) => "or+sr makes its result up",
        (Mode::Sync, Class::Outstanding) => "or does not wait for it",
        (Mode::Sync, _) if effect.is_wait() => {
            "wait less often: once an iteration, and for the last event only"
        }
        (Mode::Sync, _) if matches!(effect, Effect::Queries(_)) => {
            "wait in place of asking, or ask less often"
        }
        (Mode::Sync, _) if effect == Effect::CopiesToDevice => {
            "copy sooner and less often, from pinned memory"
        }
        (Mode::Sync, _) if effect.is_copy() => {
            "copy back less often, in one copy, an iteration late if need be; into pinned memory"
        }
        (Mode::Sync, _) if effect == Effect::Loads => "load before the iterations",
        (Mode::Sync, _) => "call it before the iterations, keep its result",
    };
    text.into()
}
