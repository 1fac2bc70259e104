//! The nvidia device: the table of driver functions that it calls, and its derived operations.

use outboard_api::decl::{self, Call, Direction, Handle, Nvidia, Op, Touches, Type};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use crate::{
    Failure, device,
    tokens::{ident, method, number, reply, rust},
};

/// Whether the outputs of a driver function become return values. `None` if the device does not
/// call the function.
fn is_by_value(call: &Call) -> Option<bool> {
    match call.attributes.nvidia {
        // See `of_default_stream`.
        None if call.derived && of_default_stream(call).1.is_some() => None,
        None if call.derived => Some(true),
        None => None,
        Some(Nvidia::Returns | Nvidia::ByHand) => Some(true),
        Some(Nvidia::Pointers) => Some(false),
    }
}

/// True if the call gives the GPU work, or records an event.
fn starts_work(call: &Call) -> bool {
    let attributes = &call.attributes;
    attributes.work.is_some()
        || attributes.records_event
        || matches!(attributes.touches, Some(Touches::Memset(_)))
}

/// Returns the function table: `struct Table`, `Table::load`, and a method of `Driver` for each
/// function.
pub fn table() -> Result<TokenStream, Failure> {
    let mut used = decl::driver()?;
    used.retain(|call| is_by_value(call).is_some());
    used.sort_by(|a, b| a.symbol.cmp(&b.symbol));
    let (mut fields, mut loads, mut methods) = (Vec::new(), Vec::new(), Vec::new());
    for call in &used {
        let (symbol, name, ty) = (ident(&call.symbol), &call.symbol, function_type(call)?);
        loads.push(quote! {
            /// SAFETY: a nullable pointer to the function of this name, whose type is declared.
            #symbol: unsafe { std::mem::transmute::<*mut c_void, #ty>(resolve(#name)) },
        });
        fields.push(quote!(#symbol: #ty,));
        methods.push(driver_method(call)?);
    }
    let calls = decl::driver()?;
    let starts = calls.iter().filter(|call| starts_work(call));
    let starts = starts.map(|call| &call.symbol);
    Ok(quote! {
        /// Functions that give the GPU work, or record an event: those of which a profiler is told.
        pub(super) const STARTS_WORK: &[&str] = &[#(#starts),*];

        /// The driver's functions; `None` where this driver is too old, or too new, to have one.
        #[allow(non_snake_case, clippy::type_complexity)]
        pub(super) struct Table { #(#fields)* }

        impl Table {
            /// # Safety
            /// `resolve` answers null or the address of the driver's function of that name.
            #[allow(clippy::type_complexity)]
            unsafe fn load(resolve: impl Fn(&str) -> *mut c_void) -> Table {
                Table { #(#loads)* }
            }
        }

        #[allow(non_snake_case)]
        impl Driver { #(#methods)* }
    })
}

/// Returns `impl Device for Nvidia`. An operation written by hand in `sources` is an inherent
/// method of that name; one that is neither written nor derived keeps the trait's answer, "not
/// supported".
pub fn device(sources: &str) -> Result<TokenStream, Failure> {
    let mut methods = Vec::new();
    for op in &device::ops()? {
        methods.extend(device_method(op, device::is_written(sources, op))?);
    }
    Ok(quote!(impl Device for Nvidia { #(#methods)* }))
}

/// Returns the device's method for a message, if the message is derived or the method written.
pub fn device_method(op: &Op, is_written: bool) -> Result<Option<TokenStream>, Failure> {
    let derived = op.derived_from.as_ref();
    let derived = derived.filter(|(call, _)| call.attributes.nvidia != Some(Nvidia::ByHand));
    let name = method(op);
    let body = match derived {
        None if !is_written => return Ok(None),
        None => quote!(Nvidia::#name(self, cx, m)),
        Some((call, directions)) => derived_body(op, call, directions)?,
    };
    let m = ident(if op.fields.is_empty() && derived.is_some() {
        "_m"
    } else {
        "m"
    });
    let (message, result) = (device::message_type(op), device::result(op));
    Ok(Some(quote! {
        fn #name(&mut self, cx: &mut Cx<'_>, #m: &#message) -> Result<#result, Failure> { #body }
    }))
}

fn derived_body(op: &Op, call: &Call, directions: &[Direction]) -> Result<TokenStream, Failure> {
    let symbol = &call.symbol;
    let (mut before, mut after) = (TokenStream::new(), TokenStream::new());
    let (mut arguments, mut outputs, mut fields) = (Vec::new(), Vec::new(), Vec::new());
    for (param, direction) in call.params.iter().zip(directions) {
        let name = ident(&decl::snake_case(&param.name));
        match direction {
            Direction::In => {
                before.extend(memory_check(call, param)?);
                arguments.push(argument(param, &name, &mut before));
            }
            Direction::RecordIn(bytes) => {
                let bytes = number(*bytes);
                before.extend(quote!(let #name = Record::<#bytes>::new(#symbol, m.#name)?;));
                arguments.push(quote!(&#name));
            }
            Direction::Out => {
                outputs.push(name.clone());
                fields.push(quote!(#name));
            }
            Direction::RecordOut(_) => {
                fields.push(quote!(#name: #name.0.to_vec().into()));
                outputs.push(name);
            }
            Direction::Mint(handle) => {
                let bind = format_ident!("bind_{}", handle.name());
                after.extend(quote!(self.#bind(m.#name, #name)?;));
                outputs.push(name);
            }
        }
    }
    let bound = match &outputs[..] {
        [] => None,
        [one] => Some(quote!(let #one =)),
        all => Some(quote!(let (#(#all),*) =)),
    };
    let (function, stream) = of_default_stream(call);
    arguments.extend(stream);
    let invoked = quote!(self.driver.#function(#(#arguments),*));
    let invoked = match call.params.iter().any(|p| p.ctype == "CUdeviceptr") {
        true => quote! {
            /// SAFETY: the addresses are the session's, or those of captured work that never runs.
            #bound unsafe { #invoked }?;
        },
        false => quote!(#bound #invoked?;),
    };
    let result = match op.reply.is_empty() {
        true => quote!(()),
        false => {
            let reply = reply(&op.name);
            quote!(messages::#reply { #(#fields),* })
        }
    };
    Ok(quote!(self.enter(cx)?; #before #invoked #after Ok(#result)))
}

/// Returns the driver's function for a call. A memset without a stream is an asynchronous one in
/// the default stream, because the driver's own waits for the stream if the memory is the host's.
fn of_default_stream(call: &Call) -> (Ident, Option<TokenStream>) {
    let is_memset = matches!(call.attributes.touches, Some(Touches::Memset(_)));
    let name = call.symbol.strip_suffix("_v2");
    match name.filter(|_| is_memset) {
        Some(name) => (format_ident!("{name}Async"), Some(quote!(h_stream))),
        None => (ident(&call.symbol), None),
    }
}

/// Returns the check of the memory at an argument that is an address.
fn memory_check(call: &Call, param: &decl::Param) -> Result<Option<TokenStream>, Failure> {
    if param.ctype != "CUdeviceptr" {
        return Ok(None);
    }
    let name = ident(&decl::snake_case(&param.name));
    let touches = call.attributes.touches.ok_or("an address of nothing")?;
    let extent = extent(call, touches);
    let stream = call.params.iter().find(|p| p.ctype == "CUstream");
    Ok(Some(match (touches, stream) {
        (Touches::Memset(_), Some(stream)) => {
            let stream = ident(&decl::snake_case(&stream.name));
            quote!(self.settable(m.#name, #extent, m.#stream)?;)
        }
        (Touches::Memset(_), None) => quote! {
            self.known(m.#name, #extent)?;
            let h_stream = self.real_stream(0)?;
        },
        _ => quote!(self.known(m.#name, #extent)?;),
    }))
}

/// Returns an argument of a driver function. The object of a handle is looked up `before` the call.
fn argument(param: &decl::Param, name: &Ident, before: &mut TokenStream) -> TokenStream {
    match decl::scalar(&param.ctype) {
        Some(Type::Handle(handle)) => {
            // A kernel's first use loads its code, for which the message's context is needed.
            let cx = (handle == Handle::Kernel).then(|| quote!(cx,));
            let real = format_ident!("real_{}", handle.name());
            before.extend(quote!(let #name = self.#real(#cx m.#name)?;));
            quote!(#name)
        }
        _ if param.ctype == "CUdevice" => {
            before.extend(quote!(let #name = self.real_device(m.#name)?;));
            quote!(#name)
        }
        _ => quote!(m.#name),
    }
}

/// Returns the number of bytes that a derived call touches from its address on.
fn extent(call: &Call, touches: Touches) -> TokenStream {
    let elements = |name: &str, bytes: usize| {
        let (name, scale) = (ident(name), number(bytes));
        match bytes {
            1 => quote!(m.#name),
            _ => quote!(m.#name.saturating_mul(#scale)),
        }
    };
    match touches {
        Touches::WaitWord(bytes) | Touches::WriteWord(bytes) => {
            let bytes = number(bytes);
            quote!(#bytes)
        }
        Touches::Memset(bytes) if call.params.iter().any(|p| p.name == "N") => elements("n", bytes),
        Touches::Memset(bytes) => {
            let width = elements("width", bytes);
            quote!(rows(m.dst_pitch, #width, m.height))
        }
    }
}

/// Returns the method of `Driver` that calls a function of the driver.
pub fn driver_method(call: &Call) -> Result<TokenStream, Failure> {
    match is_by_value(call) {
        Some(true) => value_method(call),
        _ => pointer_method(call),
    }
}

fn value_method(call: &Call) -> Result<TokenStream, Failure> {
    let (symbol, name) = (ident(&call.symbol), &call.symbol);
    let (mut params, mut arguments, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut types, mut values) = (Vec::new(), Vec::new());
    let mut is_safe = true;
    for (i, param) in call.params.iter().enumerate() {
        let raw = raw_type(&param.ctype)?;
        let (p, o) = (format_ident!("p{i}"), format_ident!("o{i}"));
        let is_untyped = raw == "*mut c_void";
        if let Some(pointee) = raw.strip_prefix("*const ") {
            let pointee = rust(pointee)?;
            params.push(quote!(#p: &#pointee));
            arguments.push(quote!(#p));
        } else if let Some(pointee) = raw
            .strip_prefix("*mut ")
            .filter(|_| call.derived || !is_untyped)
        {
            // The one untyped output, of cuDeviceGetGraphMemAttribute, is always a cuuint64_t.
            let pointee = if is_untyped { "Record<8>" } else { pointee };
            let (pointee, cast) = (rust(pointee)?, is_untyped.then(|| quote!(.cast())));
            outputs.push(quote!(let mut #o = MaybeUninit::<#pointee>::zeroed();));
            arguments.push(quote!(#o.as_mut_ptr()#cast));
            types.push(pointee);
            values.push(quote!(#o.assume_init()));
        } else {
            // The caller guarantees that the memory at each address it passes is valid.
            is_safe &= param.ctype != "CUdeviceptr" && !is_untyped;
            let raw = rust(&raw)?;
            params.push(quote!(#p: #raw));
            arguments.push(quote!(#p));
        }
    }
    let (returned, result) = match (&types[..], &values[..]) {
        ([], _) => (quote!(()), quote!(Ok(()))),
        ([ty], [value]) => (quote!(#ty), value_of(&quote!(#value))),
        _ => (quote!((#(#types),*)), value_of(&quote!((#(#values),*)))),
    };
    let safety = (!is_safe).then(|| {
        quote! {
            /// # Safety
            /// The memory named is the session's, and of the length that the call says.
        }
    });
    let is_unsafe = (!is_safe).then(|| quote!(unsafe));
    Ok(quote! {
        #safety
        #[inline]
        pub(super) #is_unsafe fn #symbol(&self, #(#params),*) -> Result<#returned, Refused> {
            let function = self.table.#symbol.ok_or(Refused::missing(#name))?;
            #(#outputs)*
            /// SAFETY: the declared signature; outputs have room, handles came from this driver.
            let result = unsafe { function(#(#arguments),*) };
            Refused::check(#name, result)?;
            #result
        }
    })
}

fn value_of(values: &TokenStream) -> TokenStream {
    quote! {
        /// SAFETY: plain data, zeroed before the driver filled it.
        Ok(unsafe { #values })
    }
}

fn pointer_method(call: &Call) -> Result<TokenStream, Failure> {
    let (symbol, name) = (ident(&call.symbol), &call.symbol);
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for (i, param) in call.params.iter().enumerate() {
        names.push(format_ident!("p{i}"));
        types.push(rust(&raw_type(&param.ctype)?)?);
    }
    let doc = format!(" Every pointer is as `cuda.h` asks of `{name}`.");
    Ok(quote! {
        /// # Safety
        #[doc = #doc]
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub(super) unsafe fn #symbol(&self, #(#names: #types),*) -> Result<(), Refused> {
            let function = self.table.#symbol.ok_or(Refused::missing(#name))?;
            /// SAFETY: the declared signature; the caller vouches for the pointers.
            let result = unsafe { function(#(#names),*) };
            Refused::check(#name, result)
        }
    })
}

fn function_type(call: &Call) -> Result<TokenStream, Failure> {
    let types = call.params.iter().map(|p| rust(&raw_type(&p.ctype)?));
    let types = types.collect::<Result<Vec<_>, Failure>>()?;
    Ok(quote!(Option<unsafe extern "C" fn(#(#types),*) -> CUresult>))
}

/// A C type of the declarations in Rust; handles are the driver's own, not the client's numbers.
fn raw_type(ctype: &str) -> Result<String, String> {
    let ctype = ctype.trim();
    if let Some(pointee) = ctype.strip_suffix('*').map(str::trim) {
        return Ok(match pointee.strip_prefix("const ") {
            Some(p) if !p.ends_with('*') => format!("*const {}", pointee_type(p)?),
            _ => format!("*mut {}", pointee_type(pointee)?),
        });
    }
    if let Some(handle) = Handle::ALL.iter().find(|h| h.ctype() == ctype) {
        return Ok(format!("real::{handle:?}"));
    }
    Ok(match ctype {
        "CUkernel" => "real::DeviceKernel".into(),
        "CUmodule" => "real::Module".into(),
        "CUhostFn" => "CUhostFn".into(),
        "CUuuid" => "CUuuid".into(),
        "CUipcEventHandle" => "CUipcEventHandle".into(),
        _ => match decl::scalar(ctype) {
            Some(Type::U8) => "u8".into(),
            Some(Type::U16) => "u16".into(),
            Some(Type::U64) => "u64".into(),
            Some(Type::I32) => "i32".into(),
            Some(Type::F32) => "f32".into(),
            Some(Type::U32) => "u32".into(),
            // Every other type that the used calls take by value is one of CUDA's enums.
            _ if ctype.starts_with("CU") => "u32".into(),
            _ => return Err(format!("type {ctype}")),
        },
    })
}

fn pointee_type(ctype: &str) -> Result<String, String> {
    Ok(match ctype {
        "void" => "c_void".into(),
        "char" => "c_char".into(),
        "CUDA_ARRAY_DESCRIPTOR" => "Record<24>".into(),
        "CUDA_ARRAY3D_DESCRIPTOR" => "Record<40>".into(),
        "CUDA_TEXTURE_DESC" => "Record<104>".into(),
        "CUDA_RESOURCE_DESC" => "Record<144>".into(),
        "CUDA_RESOURCE_VIEW_DESC" => "Record<112>".into(),
        "CUstreamAttrValue" | "CUkernelNodeAttrValue" => "Record<64>".into(),
        "CUgraphNodeParams" => "Record<256>".into(),
        "CUgraphConditionalHandle" => "u64".into(),
        record
            if record.starts_with("CUDA_")
                || [
                    "CUlaunchConfig",
                    "CUmemAllocationProp",
                    "CUmemAccessDesc",
                    "CUmemPoolProps",
                    "CUtensorMap",
                    "CUgraphEdgeData",
                    "CUgraphExecUpdateResultInfo",
                    "CUstreamBatchMemOpParams",
                ]
                .contains(&record) =>
        {
            record.into()
        }
        other => raw_type(other)?,
    })
}
