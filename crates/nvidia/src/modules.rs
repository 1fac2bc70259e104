//! Libraries, their kernels and variables.

use std::{borrow::Cow, ffi::CString};

use outboard_api::{
    CUresult,
    enums::{CU_FUNC_ATTRIBUTE_MAX, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
};
use outboard_device::{Cx, Failure, images::ImageStore};
use outboard_wire::{
    doc::{self, KernelCard, LaunchBounds, LibraryCard},
    messages,
};

use super::{
    Nvidia,
    calls::LaunchShape,
    contents::{Contents, framed},
    deferred_free::Retired,
    host_calls::{self, Aside},
    jit::{self, Options},
    launch::attributes,
    owned::Owned,
    printed::Captured,
    table::{Driver, Refused, real},
};

/// Parameters of a kernel, at most: bounds the questions about a kernel that the image does not
/// describe.
const PARAMS_MAX: u64 = 4096;

pub(super) struct Library {
    owned: Owned<real::Library>,
    kernels: Vec<Kernel>,
    may_print: bool,
    /// Names of its managed variables; `None` if only the driver may know them.
    managed_names: Option<Vec<String>>,
    /// Addresses of the managed variables that the client has asked for.
    managed: Vec<u64>,
    /// Addresses and lengths of all variables that it has asked for.
    pub(super) variables: Vec<(u64, u64)>,
    /// Kept because a compiler that compiles lazily may write to its logs later.
    options: Box<Options>,
}

impl Library {
    /// Whether a variable is managed; `None` if only the driver may know.
    fn managed(&self, name: &[u8]) -> Option<bool> {
        let names = self.managed_names.as_ref()?;
        Some(names.iter().any(|managed| managed.as_bytes() == name))
    }
}

struct Kernel {
    name: CString,
    /// The least length of a parameter buffer.
    param_bytes: usize,
    bounds: LaunchBounds,
    handle: Option<real::DeviceKernel>,
    /// Functions by the session's number of the context; mostly one.
    functions: Vec<(u64, real::Kernel)>,
}

impl Kernel {
    fn new(card: &KernelCard) -> Result<Kernel, Failure> {
        Ok(Kernel {
            name: jit::c_string("a kernel's name", card.name.as_bytes())?,
            param_bytes: param_bytes(card),
            bounds: card.bounds,
            handle: None,
            functions: Vec::new(),
        })
    }
}

impl Nvidia {
    pub(super) fn library_load(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LibraryLoad<'_>,
    ) -> Result<messages::LibraryLoadReply<'static>, Failure> {
        self.enter(cx)?;
        let mut options = Box::new(Options::parse(m.options)?);
        let hash = ImageStore::hash(m.hash)?;
        let Some(image) = cx.images.find(&hash, m.len) else {
            return Ok(missing());
        };
        let contents = self.contents(cx, &hash, &image)?;
        let current = self.context(cx.context)?.hold.handle;
        let load = |driver: &Driver| match framed(&image) {
            true => driver.load_library(&image, &mut options),
            false => {
                let mut text = image.to_vec();
                text.push(0);
                driver.load_library(&text, &mut options)
            }
        };
        let (driver, device) = self.aside();
        let loaded = host_calls::aside(driver, current, device, cx.service, load);
        let handle = match loaded {
            Ok(handle) => handle,
            refused => return reply(jit::status(refused)?, &options, None),
        };
        let mut library = Library {
            owned: Owned::new(&self.base, handle, |driver, library| {
                driver.cuLibraryUnload(library)
            }),
            kernels: Vec::new(),
            may_print: contents.may_print,
            managed_names: contents.managed.clone(),
            managed: Vec::new(),
            variables: Vec::new(),
            options,
        };
        let answer = self.prepare(cx, current, &mut library, contents);
        let is_loaded = matches!(&answer, Ok(answer) if answer.status == CUresult::CUDA_SUCCESS.0);
        if !is_loaded {
            self.retire_library(library);
            return answer;
        }
        if let Err((refused, library)) = self.libraries.try_insert(m.library, library) {
            self.retire_library(library);
            return Err(refused);
        }
        answer
    }

    /// Lists a library's kernels, and loads its code if an error has to come now. Returns the
    /// client's answer, whose status may be a refusal.
    fn prepare(
        &mut self,
        cx: &mut Cx<'_>,
        current: real::Context,
        library: &mut Library,
        contents: Contents,
    ) -> Result<messages::LibraryLoadReply<'static>, Failure> {
        let handle = library.owned.handle();
        if contents.load_now {
            let load = |driver: &Driver| driver.cuLibraryGetModule(handle);
            let (driver, device) = self.aside();
            let module = host_calls::aside(driver, current, device, cx.service, load);
            if module.is_err() {
                return reply(jit::status(module)?, &library.options, None);
            }
        }
        let mut card = contents.card;
        if card.kernels.is_empty() {
            card = enumerate(&self.driver, handle)?;
        }
        let kernels = card.kernels.iter().map(Kernel::new);
        library.kernels = kernels.collect::<Result<_, Failure>>()?;
        self.capture_output(contents.may_print)?;
        reply(CUresult::CUDA_SUCCESS, &library.options, Some(&card))
    }

    /// Unloads a library once all work that there is now is done: the driver waits for it.
    fn retire_library(&mut self, library: Library) {
        let marks = self.busy_marks();
        self.deferred_frees
            .push(Retired::Other(Box::new(library)), None, marks);
    }

    /// Redirects the outputs that a module's kernels may write to.
    fn capture_output(&mut self, may_print: bool) -> Result<(), Failure> {
        if may_print && self.printed.is_none() {
            self.printed = Some(Captured::stdout()?);
        }
        if self.complaints.is_none() {
            self.complaints = Some(Captured::stderr()?);
        }
        Ok(())
    }

    pub(super) fn library_unload(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::LibraryUnload,
    ) -> Result<(), Failure> {
        let library = self.libraries.remove(m.library)?;
        for va in &library.managed {
            self.host.forget_managed(*va);
        }
        self.release_variables();
        self.retire_library(library);
        Ok(())
    }

    pub(super) fn library_global(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::LibraryGlobal<'_>,
    ) -> Result<messages::LibraryGlobalReply, Failure> {
        self.enter(cx)?;
        let name = jit::c_string("a variable's name", m.name)?;
        let library = self.libraries.get(m.library)?;
        let (handle, managed) = (library.owned.handle(), library.managed(m.name));
        let find = |driver: &Driver| -> Result<_, Refused> {
            match managed {
                Some(true) => Ok((driver.library_managed(handle, &name)?, true)),
                Some(false) => Ok((driver.library_global(handle, &name)?, false)),
                None => match driver.library_managed(handle, &name) {
                    Ok(found) => Ok((found, true)),
                    Err(_) => Ok((driver.library_global(handle, &name)?, false)),
                },
            }
        };
        let current = self.context(cx.context)?.hold.handle;
        // The driver loads the library now if it has not yet, and may wait for work to do so.
        let (driver, device) = self.aside();
        let ((va, len), managed) = host_calls::aside(driver, current, device, cx.service, find)?;
        self.take_variable(va, len);
        let variables = &mut self.libraries.get_mut(m.library)?.variables;
        if !variables.contains(&(va, len)) {
            variables.push((va, len));
        }
        if managed && self.host.keep_managed(&self.base, va, len)? {
            self.libraries.get_mut(m.library)?.managed.push(va);
        }
        Ok(messages::LibraryGlobalReply {
            va,
            len,
            managed: managed.into(),
        })
    }

    pub(super) fn kernel_attributes(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::KernelAttributes,
    ) -> Result<messages::KernelAttributesReply<'static>, Failure> {
        self.enter(cx)?;
        let kernel = self.real_kernel(cx, m.kernel)?;
        let mut values = Vec::new();
        for attribute in 0..CU_FUNC_ATTRIBUTE_MAX {
            match self.driver.cuFuncGetAttribute(attribute, kernel) {
                Ok(value) => values.extend(value.to_le_bytes()),
                // An older driver knows fewer attributes: the list ends there.
                Err(refused) if refused.status == CUresult::CUDA_ERROR_INVALID_VALUE => break,
                Err(refused) => return Err(refused.into()),
            }
        }
        self.compare(m.kernel, &values);
        Ok(messages::KernelAttributesReply {
            values: values.into(),
        })
    }

    /// Checks that the client was promised no more of a kernel than the driver grants.
    fn compare(&self, kernel: u64, values: &[u8]) {
        let granted = |attribute: u32| {
            let value = values.as_chunks::<4>().0.get(attribute as usize);
            value.map_or(0, |bytes| i32::from_le_bytes(*bytes).max(0).unsigned_abs())
        };
        let promised = self
            .libraries
            .get(kernel >> 32)
            .ok()
            .and_then(|library| library.kernels.get(kernel as u32 as usize));
        if let Some(Kernel { name, bounds, .. }) = promised
            && bounds.threads > granted(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        {
            tracing::warn!(?name, ?bounds, "more was promised than the driver grants");
        }
    }

    pub(super) fn kernel_set_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::KernelSetAttribute,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let kernel = self.real_kernel(cx, m.kernel)?;
        Ok(self
            .driver
            .cuFuncSetAttribute(kernel, m.attribute, m.value)?)
    }

    pub(super) fn occupancy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::Occupancy<'_>,
    ) -> Result<messages::OccupancyReply, Failure> {
        self.enter(cx)?;
        let kernel = self.real_kernel(cx, m.kernel)?;
        let value = match m.query {
            doc::OCCUPANCY_BLOCKS_PER_MULTIPROCESSOR => i64::from(
                self.driver
                    .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                        kernel,
                        m.block_size,
                        m.shared_bytes,
                        m.flags,
                    )?,
            ) as u64,
            doc::OCCUPANCY_SHARED_BYTES_PER_BLOCK => {
                self.driver.cuOccupancyAvailableDynamicSMemPerBlock(
                    kernel,
                    i32::try_from(m.shared_bytes).unwrap_or(i32::MAX),
                    m.block_size,
                )?
            }
            doc::OCCUPANCY_ACTIVE_CLUSTERS | doc::OCCUPANCY_CLUSTER_SIZE_MAX => {
                let (shape, records) = config(m.config)?;
                let mut attributes = attributes(self, records)?;
                let ask = match m.query {
                    doc::OCCUPANCY_ACTIVE_CLUSTERS => Driver::active_clusters,
                    _ => Driver::cluster_size_max,
                };
                let stream = real::Stream::NULL;
                i64::from(ask(&self.driver, kernel, stream, shape, &mut attributes)?) as u64
            }
            query => return Err(Failure::unsupported(&format!("occupancy query {query}"))),
        };
        Ok(messages::OccupancyReply { value })
    }

    /// Returns the number and the parameters (offset, size) of a kernel that was launched, found by
    /// its function or its handle.
    #[allow(clippy::type_complexity)]
    pub(super) fn kernel_of(
        &self,
        function: usize,
        kernel: usize,
    ) -> Result<Option<(u64, Vec<(u32, u32)>)>, Failure> {
        for (library, of) in self.libraries.iter() {
            for (index, known) in of.kernels.iter().enumerate() {
                let Some(handle) = known.handle else { continue };
                let is_it = match function {
                    0 => handle.raw() == kernel,
                    _ => known.functions.iter().any(|(_, f)| f.raw() == function),
                };
                if is_it {
                    let layout = params_of(&self.driver, handle)?;
                    return Ok(Some((library << 32 | index as u64, layout)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the kernel's function in the current context, which is found at its first use.
    #[inline]
    pub(super) fn real_kernel(
        &mut self,
        cx: &mut Cx<'_>,
        id: u64,
    ) -> Result<real::Kernel, Failure> {
        let (library, index) = (id >> 32, id as u32 as usize);
        let context = self.current.unwrap_or(0);
        let library = self.libraries.get_mut(library)?;
        let kernel = library
            .kernels
            .get_mut(index)
            .ok_or_else(|| Failure::wild("kernel", id))?;
        if let Some((_, function)) = kernel.functions.iter().find(|(c, _)| *c == context) {
            return Ok(*function);
        }
        let (known, owner, name) = (kernel.handle, library.owned.handle(), &kernel.name);
        // The first use loads the code, and loading waits for the streams.
        let current = self
            .contexts
            .get(context)
            .map_or(self.base.handle, |c| c.hold.handle);
        let find = |driver: &Driver| {
            let handle = match known {
                Some(handle) => handle,
                None => driver.library_kernel(owner, name)?,
            };
            let function = driver.cuKernelGetFunction(handle)?;
            // Older drivers load the code with the function.
            match driver.cuFuncLoad(function) {
                Err(refused) if !refused.is_missing() => return Err(refused),
                _ => {}
            }
            Ok::<_, Refused>((handle, function))
        };
        let (handle, function) = host_calls::aside(
            &self.driver,
            current,
            Aside::new(
                &mut self.host_calls,
                &mut self.host,
                &self.printed,
                &mut self.printing,
            ),
            cx.service,
            find,
        )?;
        kernel.handle = Some(handle);
        kernel.functions.push((context, function));
        Ok(function)
    }

    /// Returns the kernel's function for a launch, after checking the parameters' length: the
    /// driver reads as many bytes as the kernel takes.
    #[inline]
    pub(super) fn launchable(
        &mut self,
        cx: &mut Cx<'_>,
        id: u64,
        params: &[u8],
        stream: Option<u64>,
    ) -> Result<real::Kernel, Failure> {
        let function = self.real_kernel(cx, id)?;
        let library = self.libraries.get(id >> 32)?;
        if library.may_print {
            if stream.is_none() || !self.captures.is_empty() {
                self.printing.captures();
            }
            if let Some(stream) = stream {
                self.printing.launches((cx.context, stream));
            }
        }
        let wanted = library
            .kernels
            .get(id as u32 as usize)
            .map_or(0, |kernel| kernel.param_bytes);
        if params.len() < wanted {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!(
                    "{} bytes of parameters for a kernel that takes {wanted}",
                    params.len()
                ),
            ));
        }
        Ok(function)
    }

    /// Removes the kernel functions of a context that ends.
    pub(super) fn forget_functions(&mut self, context: u64) {
        self.libraries.for_each_mut(|library| {
            for kernel in &mut library.kernels {
                kernel.functions.retain(|(c, _)| *c != context);
            }
        });
    }
}

fn param_bytes(kernel: &KernelCard) -> usize {
    let ends = kernel
        .params
        .iter()
        .map(|(offset, size)| offset.saturating_add(*size) as usize);
    ends.max().unwrap_or(0)
}

/// The reply that asks the client to send the image first.
fn missing() -> messages::LibraryLoadReply<'static> {
    messages::LibraryLoadReply {
        status: CUresult::CUDA_SUCCESS.0,
        missing: 1,
        card: Cow::Borrowed(&[]),
        info_log: Cow::Borrowed(&[]),
        error_log: Cow::Borrowed(&[]),
    }
}

fn reply(
    status: CUresult,
    options: &Options,
    card: Option<&LibraryCard>,
) -> Result<messages::LibraryLoadReply<'static>, Failure> {
    let card = match card {
        Some(card) => doc::to_bytes(card).map_err(|error| {
            Failure::new(
                CUresult::CUDA_ERROR_UNKNOWN,
                format!("the list of kernels: {error}"),
            )
        })?,
        None => Vec::new(),
    };
    let (info_log, error_log) = options.logs();
    Ok(messages::LibraryLoadReply {
        status: status.0,
        missing: 0,
        card: card.into(),
        info_log: info_log.into(),
        error_log: error_log.into(),
    })
}

/// Asks the driver for the kernels of a library.
fn enumerate(driver: &Driver, library: real::Library) -> Result<LibraryCard, Failure> {
    let mut kernels = Vec::new();
    for kernel in driver.library_kernels(library)? {
        kernels.push(KernelCard {
            name: driver.kernel_name(kernel)?.to_string_lossy().into_owned(),
            params: params_of(driver, kernel)?,
            bounds: LaunchBounds::default(),
        });
    }
    Ok(LibraryCard { kernels })
}

/// Returns offset and size of each parameter.
fn params_of(driver: &Driver, kernel: real::DeviceKernel) -> Result<Vec<(u32, u32)>, Refused> {
    let mut params = Vec::new();
    for index in 0..PARAMS_MAX {
        match driver.cuKernelGetParamInfo(kernel, index) {
            Ok((offset, size)) => params.push((offset as u32, size as u32)),
            Err(Refused {
                status: CUresult::CUDA_ERROR_INVALID_VALUE,
                ..
            }) => break,
            Err(refused) => return Err(refused),
        }
    }
    Ok(params)
}

/// Decodes a launch configuration: seven numbers, then launch attributes.
fn config(bytes: &[u8]) -> Result<(LaunchShape, &[u8]), Failure> {
    let (head, records) = bytes
        .split_first_chunk::<{ doc::OCCUPANCY_CONFIG_BYTES }>()
        .ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("a launch configuration of {} bytes", bytes.len()),
            )
        })?;
    let number = |i: usize| {
        head[4 * i..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b))
    };
    let shape = LaunchShape {
        grid: [number(0), number(1), number(2)],
        block: [number(3), number(4), number(5)],
        shared_bytes: number(6),
    };
    Ok((shape, records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_seven_numbers_and_attributes() {
        let mut bytes: Vec<u8> = (1..=7_u32).flat_map(u32::to_le_bytes).collect();
        bytes.extend([9; 72]);
        let (shape, records) = config(&bytes).expect("long enough");
        assert_eq!((shape.grid, shape.block), ([1, 2, 3], [4, 5, 6]));
        assert_eq!((shape.shared_bytes, records.len()), (7, 72));
        assert!(config(&bytes[..27]).is_err());
    }
}
