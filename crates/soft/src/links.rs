//! The linker: PTX texts become one text, and the program loads it as an image.

use std::borrow::Cow;

use outboard_api::{CUresult, enums::*};
use outboard_device::{
    Cx, Failure,
    images::{Hash, ImageStore},
};
use outboard_image::{device_code, ptx};
use outboard_ptx::{limits::PTX_BYTES_MAX, module::Module};
use outboard_wire::messages;

use super::{
    Capability, Soft,
    jit_limits::{self, JitLimits},
    modules::{Refused, select},
    wait::invalid,
};

/// Functions of the device runtime's library, of which this device has its own: barriers of a grid.
const DEVICE_RUNTIME: &str = include_str!("device_runtime.ptx");
/// Prefix of the names of these functions.
const DEVICE_RUNTIME_PREFIX: &str = "cudaCG";

/// A linked text's module, which the program most likely loads next.
pub(super) struct Linked {
    link: u64,
    hash: Hash,
    module: Module,
}

/// Inputs of a JIT link.
pub(super) struct Link {
    inputs: Vec<String>,
    /// Why inputs were left out: they contain no PTX that fits.
    left_out: String,
    limits: JitLimits,
}

impl Soft {
    pub(super) fn link_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::LinkCreate<'_>,
    ) -> Result<(), Failure> {
        let link = Link {
            inputs: Vec::new(),
            left_out: String::new(),
            limits: JitLimits::parse(m.options)?,
        };
        self.links.insert(m.link, link)
    }

    pub(super) fn cu_link_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuLinkDestroy,
    ) -> Result<(), Failure> {
        self.linked = self.linked.take().filter(|of| of.link != m.state);
        self.links.remove(m.state).map(|_| ())
    }

    /// Returns the module of a linked text that is loaded for the first time: NCCL's takes seconds.
    pub(super) fn take_linked(&mut self, hash: &Hash) -> Option<Module> {
        let linked = self.linked.take_if(|of| of.hash == *hash)?;
        Some(linked.module)
    }

    pub(super) fn link_add(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LinkAdd<'_>,
    ) -> Result<messages::LinkAddReply<'static>, Failure> {
        let image = cx.images.get(&ImageStore::hash(m.hash)?)?;
        let capability = self.capability;
        let link = self.links.get_mut(m.link)?;
        let added = match m.input_type {
            CU_JIT_INPUT_PTX => link.add(&image, capability),
            // A relocatable build also names the device runtime's library, which has code for
            // other GPUs only. Code that uses it fails later, with an undefined symbol.
            CU_JIT_INPUT_FATBINARY => link.add_if_fitting(&[&image], capability),
            CU_JIT_INPUT_OBJECT | CU_JIT_INPUT_LIBRARY => device_code(&image)
                .map_err(|error| Refused {
                    status: CUresult::CUDA_ERROR_INVALID_IMAGE,
                    log: format!("{}: {error}", String::from_utf8_lossy(m.name)),
                })
                .and_then(|images| link.add_if_fitting(&images, capability)),
            CU_JIT_INPUT_CUBIN | CU_JIT_INPUT_NVVM => Err(Refused {
                status: CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                log: format!(
                    "{}: input of type {} holds no PTX, and the software GPU runs nothing else",
                    String::from_utf8_lossy(m.name),
                    m.input_type
                ),
            }),
            other => return Err(invalid(format!("linker input of type {other}"))),
        };
        let (status, info_log, error_log) = match added {
            Ok(info) => (CUresult::CUDA_SUCCESS, info, String::new()),
            Err(refused) => (refused.status, String::new(), refused.log),
        };
        Ok(messages::LinkAddReply {
            status: status.0,
            info_log: Cow::Owned(info_log.into_bytes()),
            error_log: Cow::Owned(error_log.into_bytes()),
        })
    }

    /// Joins all inputs into one text. Loading it once here reports missing symbols as the linker's
    /// errors.
    pub(super) fn link_complete(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LinkComplete,
    ) -> Result<messages::LinkCompleteReply<'static>, Failure> {
        let link = self.links.get(m.link)?;
        let text = link.join();
        let tried = if link.inputs.is_empty() {
            Err(Refused {
                status: CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
                log: format!("nothing to link {}", link.left_out),
            })
        } else {
            ptx::scan_header(&text)
                .map_err(|error| Refused {
                    status: CUresult::CUDA_ERROR_INVALID_PTX,
                    log: error.to_string(),
                })
                .and_then(|_| Module::load(&text, self.gpu.memory()).map_err(Refused::new))
        };
        let mut reply = messages::LinkCompleteReply {
            status: CUresult::CUDA_SUCCESS.0,
            hash: Cow::Borrowed(&[]),
            len: 0,
            info_log: Cow::Borrowed(&[]),
            error_log: Cow::Borrowed(&[]),
        };
        match tried {
            Ok(module) => {
                reply.len = text.len() as u64;
                let hash = cx.images.hold(text.into_bytes());
                reply.hash = Cow::Owned(hash.to_vec());
                // Managed variables have places that depend on the library's number.
                let is_whole = module.globals().iter().all(|global| !global.managed);
                self.linked = is_whole.then_some(Linked {
                    link: m.link,
                    hash,
                    module,
                });
            }
            Err(refused) => {
                reply.status = refused.status.0;
                reply.error_log = Cow::Owned(refused.log.into_bytes());
            }
        }
        Ok(reply)
    }
}

impl Link {
    /// Adds an image's PTX; returns what there is to say about it.
    fn add(&mut self, image: &[u8], capability: Capability) -> Result<String, Refused> {
        let (text, _) = select(image, capability)?;
        let collected: usize = self.inputs.iter().map(|input| input.len() + 1).sum();
        if collected + text.len() >= PTX_BYTES_MAX {
            return Err(Refused {
                status: CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                log: format!("more than {PTX_BYTES_MAX} bytes of PTX to link"),
            });
        }
        self.inputs.push(text);
        Ok(String::new())
    }

    /// Adds the PTX of images; leaves out those that have none for this device.
    fn add_if_fitting(
        &mut self,
        images: &[&[u8]],
        capability: Capability,
    ) -> Result<String, Refused> {
        let mut said = String::new();
        for image in images {
            match self.add(image, capability) {
                Err(refused) if refused.status == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                    said = format!("left out: {}", refused.log);
                    self.left_out = refused.log;
                }
                added => drop(added?),
            }
        }
        Ok(said)
    }

    /// Joins the texts. Each begins a unit of its own, and the loader links them.
    fn join(&self) -> String {
        let mut joined = String::with_capacity(self.inputs.iter().map(|t| t.len() + 1).sum());
        if let Some(limit) = self.limits.registers_max {
            joined.push_str(&jit_limits::first_line(limit));
        }
        // The functions are weak: an input's own go before them.
        let is_wanted = |text: &String| text.contains(DEVICE_RUNTIME_PREFIX);
        let runtime = !self.left_out.is_empty() && self.inputs.iter().any(is_wanted);
        let own = runtime.then_some(DEVICE_RUNTIME);
        for text in self.inputs.iter().map(String::as_str).chain(own) {
            joined.push_str(text);
            joined.push('\n');
        }
        joined
    }
}
