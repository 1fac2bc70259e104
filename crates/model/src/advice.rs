//! Advice on how to make calls of a kind cheaper.

use outboard_api::decl::Class;

use crate::Mode;

pub(crate) fn advice(function: &str, class: Class, mode: Mode) -> String {
    let text = match (mode, class) {
        (Mode::Local, _) => "nothing: it is answered locally",
        (Mode::Async, _) if function.starts_with("cuMemcpyHtoD") => {
            "not waited for; its bytes take the link: send less, or sooner"
        }
        (Mode::Async, _) if function.starts_with("cuLaunchKernel") => {
            "not waited for; a CUDA graph makes one call of many"
        }
        (Mode::Async, _) => "not waited for; fewer calls",
        (Mode::Sync, Class::Local) => "or+sr+local answers it locally",
        (Mode::Sync, Class::Shadowed) => "or+sr makes its result up",
        (Mode::Sync, Class::Outstanding) => "or does not wait for it",
        (Mode::Sync, _) if function.contains("Synchronize") => {
            "wait less often: once an iteration, and for the last event only"
        }
        (Mode::Sync, _) if function.contains("Query") => {
            "wait in place of asking, or ask less often"
        }
        (Mode::Sync, _) if function.starts_with("cuMemcpyHto") => {
            "copy sooner and less often, from pinned memory"
        }
        (Mode::Sync, _) if function.starts_with("cuMemcpy") => {
            "copy back less often, in one copy, an iteration late if need be; into pinned memory"
        }
        (Mode::Sync, _) if function.contains("Module") || function.contains("Library") => {
            "load before the iterations"
        }
        (Mode::Sync, _) => "call it before the iterations, keep its result",
    };
    text.into()
}
