//! Libraries: images, the PTX in them, their kernels and variables.

use std::{borrow::Cow, sync::Arc};

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure, images::ImageStore};
use outboard_image::{Arch, Format, Image, ptx};
use outboard_ptx::{
    device::{Code, ModuleKernel},
    memory::MemoryError,
    module::Module,
};
use outboard_wire::{
    doc::{self, KernelCard, LaunchBounds, LibraryCard},
    messages,
};

use super::{
    Capability, Soft, card,
    contexts::check_cache_config,
    jit_limits::{self, JitLimits},
    wait::invalid,
};

/// The device function behind `printf`, in PTX.
const PRINT_SYMBOL: &str = "vprintf";

pub(super) struct Library {
    pub(super) module: Arc<Module>,
    kernels: Vec<Kernel>,
    /// The architecture that the PTX was written for.
    target: Arch,
    /// The register limit of the linker or of the load.
    registers_max: Option<u32>,
}

/// A kernel, and the attributes that calls have set on it.
pub(super) struct Kernel {
    pub(super) code: Arc<dyn Code>,
    pub(super) dynamic_shared_max: u32,
    carveout: i32,
}

/// Why an image cannot be loaded: the status, and text for the program's error log.
pub(super) struct Refused {
    pub(super) status: CUresult,
    pub(super) log: String,
}

impl Refused {
    pub(super) fn new(error: outboard_ptx::error::Error) -> Refused {
        Refused {
            status: match &error {
                outboard_ptx::error::Error::Memory(_) => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                outboard_ptx::error::Error::Version { .. } => {
                    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
                }
                _ => CUresult::CUDA_ERROR_INVALID_PTX,
            },
            log: error.to_string(),
        }
    }
}

impl Soft {
    /// Returns a kernel by its number on the wire: the library's number, then the index in it.
    pub(super) fn kernel(&self, id: u64) -> Result<(&Library, &Kernel), Failure> {
        let library = self
            .libraries
            .get(id >> 32)
            .map_err(|_| Failure::wild("kernel", id))?;
        let kernel = library.kernels.get(id as u32 as usize);
        Ok((library, kernel.ok_or_else(|| Failure::wild("kernel", id))?))
    }

    /// Returns the number of the kernel with this code.
    pub(super) fn kernel_of(&self, code: &Arc<dyn Code>) -> Option<u64> {
        self.libraries.iter().find_map(|(library, of)| {
            let mut kernels = of.kernels.iter();
            let index = kernels.position(|kernel| Arc::ptr_eq(&kernel.code, code))?;
            Some(library << 32 | index as u64)
        })
    }

    pub(super) fn facts(
        &self,
        id: u64,
    ) -> Result<(&outboard_ptx::lower::Kernel, &Kernel), Failure> {
        let (library, kernel) = self.kernel(id)?;
        let facts = library.module.kernels().get(id as u32 as usize);
        Ok((facts.ok_or_else(|| Failure::wild("kernel", id))?, kernel))
    }

    pub(super) fn library_load(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LibraryLoad<'_>,
    ) -> Result<messages::LibraryLoadReply<'static>, Failure> {
        let nothing = || Cow::Borrowed(&[][..]);
        let hash = ImageStore::hash(m.hash)?;
        let Some(image) = cx.images.find(&hash, m.len) else {
            return Ok(messages::LibraryLoadReply {
                status: CUresult::CUDA_SUCCESS.0,
                missing: 1,
                card: nothing(),
                info_log: nothing(),
                error_log: nothing(),
            });
        };
        let options = JitLimits::parse(m.options)?;
        let loaded = select(&image, self.capability).and_then(|(text, target)| {
            self.may_print |= text.contains(PRINT_SYMBOL);
            let limits = [jit_limits::registers_max(&text), options.registers_max];
            let module = match self.take_linked(&hash) {
                Some(module) => module,
                None => self.module(m.library, &text)?,
            };
            let mut library = self.library(module, target);
            library.registers_max = limits.into_iter().flatten().min();
            Ok(library)
        });
        let (status, card, error_log) = match loaded {
            Ok(library) => {
                let card = library.card()?;
                self.libraries.insert(m.library, library)?;
                (CUresult::CUDA_SUCCESS, card, Vec::new())
            }
            Err(refused) => {
                self.managed_end(m.library)?;
                tracing::info!(status = %refused.status, reason = refused.log, "an image was refused");
                (refused.status, Vec::new(), refused.log.into_bytes())
            }
        };
        Ok(messages::LibraryLoadReply {
            status: status.0,
            missing: 0,
            card: Cow::Owned(card),
            info_log: nothing(),
            error_log: Cow::Owned(error_log),
        })
    }

    fn module(&mut self, number: u64, text: &str) -> Result<Module, Refused> {
        let memory = self.gpu.memory().clone();
        Module::load_with(text, &memory, &mut |bytes| {
            self.managed_place(number, bytes).map_err(|failure| {
                tracing::info!(reason = %failure, "no room for managed variables");
                MemoryError::OutOfMemory { bytes }
            })
        })
        .map_err(Refused::new)
    }

    fn library(&self, module: Module, target: Arch) -> Library {
        let module = Arc::new(module);
        let kernels = module
            .kernels()
            .iter()
            .map(|facts| Kernel {
                code: Arc::new(ModuleKernel::new(
                    self.machine.clone(),
                    module.clone(),
                    facts.name.clone(),
                )),
                dynamic_shared_max: card::SHARED_BYTES.saturating_sub(facts.shared_bytes),
                carveout: -1,
            })
            .collect();
        Library {
            module,
            kernels,
            target,
            registers_max: None,
        }
    }

    /// Unloads a library. Launches under way keep what they need.
    pub(super) fn library_unload(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::LibraryUnload,
    ) -> Result<(), Failure> {
        self.libraries.remove(m.library)?;
        self.managed_end(m.library)
    }

    pub(super) fn library_global(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::LibraryGlobal<'_>,
    ) -> Result<messages::LibraryGlobalReply, Failure> {
        let library = self.libraries.get(m.library)?;
        let name = String::from_utf8_lossy(m.name);
        let global = library.module.global(&name).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_NOT_FOUND,
                format!("the library has no variable {name:?}"),
            )
        })?;
        let (va, len, managed) = (global.address, global.bytes, global.managed);
        if managed {
            self.managed_watch(va, len)?;
        }
        Ok(messages::LibraryGlobalReply {
            va,
            len,
            managed: managed.into(),
        })
    }

    pub(super) fn variable_find(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::VariableFind,
    ) -> Result<messages::VariableFindReply, Failure> {
        let holds = |g: &&outboard_ptx::module::Global| {
            m.va >= g.address && m.va - g.address < g.bytes && !g.managed
        };
        let found = self
            .libraries
            .iter()
            .find_map(|(_, library)| library.module.globals().iter().find(holds));
        let (base, len) = found.map_or((0, 0), |global| (global.address, global.bytes));
        let device = self.contexts.get(cx.context).map_or(0, |c| c.device) as i32;
        Ok(messages::VariableFindReply { base, len, device })
    }

    pub(super) fn kernel_attributes(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::KernelAttributes,
    ) -> Result<messages::KernelAttributesReply<'static>, Failure> {
        let (library, kernel) = self.kernel(m.kernel)?;
        let (facts, _) = self.facts(m.kernel)?;
        let mut values = [0i32; CU_FUNC_ATTRIBUTE_MAX as usize];
        let mut set = |attribute: u32, value: u64| {
            values[attribute as usize] = i32::try_from(value).unwrap_or(i32::MAX);
        };
        set(
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            block_threads_max(facts).into(),
        );
        set(
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            facts.shared_bytes.into(),
        );
        set(
            CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
            library.module.const_bytes(),
        );
        set(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, facts.local_bytes.into());
        // Bounds of the kernel's own go before the linker's limit.
        let limit = library.registers_max.filter(|_| !facts.bounds_registers);
        let registers = limit.map_or(facts.registers, |limit| facts.registers.min(limit));
        set(CU_FUNC_ATTRIBUTE_NUM_REGS, registers.into());
        set(CU_FUNC_ATTRIBUTE_PTX_VERSION, library.target.number.into());
        let facts = self.capability.facts();
        set(
            CU_FUNC_ATTRIBUTE_BINARY_VERSION,
            u64::from(facts.major * 10 + facts.minor),
        );
        set(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            kernel.dynamic_shared_max.into(),
        );
        values[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as usize] = kernel.carveout;
        Ok(messages::KernelAttributesReply {
            values: Cow::Owned(
                values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            ),
        })
    }

    pub(super) fn kernel_set_attribute(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::KernelSetAttribute,
    ) -> Result<(), Failure> {
        let (facts, _) = self.facts(m.kernel)?;
        let optin_max = self.capability.facts().shared_optin_bytes;
        let optin_max = optin_max.saturating_sub(facts.shared_bytes);
        let kernel = self.libraries.get_mut(m.kernel >> 32)?;
        let kernel = kernel.kernels.get_mut(m.kernel as u32 as usize);
        let kernel = kernel.ok_or_else(|| Failure::wild("kernel", m.kernel))?;
        match m.attribute {
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let bytes = u32::try_from(m.value)
                    .ok()
                    .filter(|bytes| *bytes <= optin_max);
                kernel.dynamic_shared_max = bytes.ok_or_else(|| {
                    invalid(format!(
                        "{} bytes of dynamic shared memory; {} allows at most {optin_max}",
                        m.value,
                        kernel.code.name()
                    ))
                })?;
                Ok(())
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&m.value) => {
                kernel.carveout = m.value;
                Ok(())
            }
            CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET
                ..=CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                Err(Failure::unsupported("clusters"))
            }
            attribute => Err(invalid(format!(
                "kernel attribute {attribute} set to {}",
                m.value
            ))),
        }
    }

    pub(super) fn cu_func_load(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuFuncLoad,
    ) -> Result<(), Failure> {
        self.kernel(m.function).map(|_| ())
    }

    pub(super) fn cu_func_set_cache_config(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuFuncSetCacheConfig,
    ) -> Result<(), Failure> {
        self.kernel(m.hfunc)?;
        check_cache_config(m.config)
    }

    /// Accepts the setting without effect, as the driver does: banks of shared memory have had one
    /// size since Maxwell.
    pub(super) fn cu_func_set_shared_mem_config(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuFuncSetSharedMemConfig,
    ) -> Result<(), Failure> {
        self.kernel(m.hfunc)?;
        match m.config {
            CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE..=CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE => {
                Ok(())
            }
            config => Err(invalid(format!("shared memory configuration {config}"))),
        }
    }
}

impl Library {
    pub(super) fn uses_heap(&self) -> bool {
        self.module.uses_heap()
    }

    fn card(&self) -> Result<Vec<u8>, Failure> {
        let kernels = self.module.kernels().iter().map(|kernel| KernelCard {
            name: kernel.name.clone(),
            params: kernel.params.iter().map(|p| (p.offset, p.bytes)).collect(),
            bounds: LaunchBounds {
                threads: block_threads_max(kernel),
                dynamic_shared_bytes: card::SHARED_BYTES.saturating_sub(kernel.shared_bytes),
            },
        });
        let card = LibraryCard {
            kernels: kernels.collect(),
        };
        doc::to_bytes(&card).map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))
    }
}

/// Returns the most threads that a block of the kernel may have.
pub(super) fn block_threads_max(facts: &outboard_ptx::lower::Kernel) -> u32 {
    let declared = facts
        .max_threads
        .map(|t| t.iter().copied().fold(1, u32::saturating_mul));
    declared
        .unwrap_or(card::BLOCK_THREADS_MAX)
        .min(card::BLOCK_THREADS_MAX)
}

/// Returns the image's PTX to run: the highest version that the compute capability supports.
pub(super) fn select(image: &[u8], capability: Capability) -> Result<(String, Arch), Refused> {
    let refused = |status| {
        move |error: outboard_image::Error| Refused {
            status,
            log: error.to_string(),
        }
    };
    let image = Image::parse(image).map_err(refused(CUresult::CUDA_ERROR_INVALID_IMAGE))?;
    let facts = capability.facts();
    let missing = match image.format() {
        // A driver's compiler refuses PTX for a later architecture.
        Format::Ptx => CUresult::CUDA_ERROR_INVALID_PTX,
        _ => CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    };
    let entry = image
        .select_ptx(facts.major, facts.minor)
        .map_err(|error| Refused {
            status: missing,
            log: match capability.taking(&image) {
                Some(other) => {
                    format!("{error}; `outboard serve --device soft --capability {other}` takes it")
                }
                None => error.to_string(),
            },
        })?;
    let invalid = refused(CUresult::CUDA_ERROR_INVALID_IMAGE);
    let bytes = entry.bytes().map_err(invalid)?;
    let text = ptx::decode(&bytes).map_err(refused(CUresult::CUDA_ERROR_INVALID_PTX))?;
    Ok((text.to_owned(), entry.arch))
}
