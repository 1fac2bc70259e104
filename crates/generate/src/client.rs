//! The entry points of `libcuda.so`, and the client's side of derived calls.

use outboard_api::decl::{
    self, Call, Capture, Class, Direction, Ends, NodeCall, NodeVerb, Op, PerThread, ServerBy,
    Touches, Type,
};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::{
    Failure,
    ffi::{Params, arguments, export, forms, name, stream_of, subject_of, target},
    tokens::{camel, ident, number, wire_type},
};

/// Returns every exported function, and the table of them.
pub fn entry() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    let mut all = TokenStream::new();
    for (at, call) in calls.iter().enumerate() {
        for form in forms(call) {
            all.extend(function(at, call, target(&calls, call)?, form)?);
        }
    }
    for op in &decl::ops()? {
        if let Some((call, directions)) = &op.derived_from {
            all.extend(derived(op, call, directions)?);
        }
    }
    let mut exports: Vec<String> = calls
        .iter()
        .flat_map(|c| c.exports().collect::<Vec<_>>())
        .collect();
    exports.sort();
    let exports = exports.iter().map(|export| {
        let function = ident(export);
        quote!((#export, Export(#function as *const c_void)),)
    });
    Ok(quote! {
        #all
        /// Every exported symbol and its address, by name.
        static EXPORTS: &[(&str, Export)] = &[#(#exports)*];
    })
}

/// Returns the table of the calls' names and classes, and whether launches that are held back have
/// to be sent before each.
pub fn call_table() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    // An older name has the class of the call that serves it.
    let served: Result<Vec<_>, _> = calls.iter().map(|call| target(&calls, call)).collect();
    let served = served?;
    let rows = calls.iter().zip(&served).map(|(call, served)| {
        let (symbol, class) = (&call.symbol, ident(&format!("{:?}", served.class)));
        quote!((#symbol, Class::#class),)
    });
    let after_held = served.iter().map(|call| {
        let attributes = &call.attributes;
        let asks = call.class != Class::Local || attributes.is_query || attributes.may_ask;
        asks && !attributes.may_be_held
    });
    Ok(quote! {
        /// Name and declared class of every call, by number.
        pub(crate) static CALLS: &[(&str, Class)] = &[#(#rows)*];
        /// Tells by a call's number if held launches have to be sent before it.
        pub(crate) static IS_AFTER_HELD: &[bool] = &[#(#after_held),*];
    })
}

/// Returns one exported function. `call` gives its name, `target` the call that serves it.
pub fn function(
    at: usize,
    call: &Call,
    target: &Call,
    per_thread: Option<PerThread>,
) -> Result<TokenStream, Failure> {
    let (symbol, at) = (export(call, per_thread), number(at));
    if target.class == Class::Unsupported {
        // The arguments are not read, so they need not be declared.
        return Ok(quote! {
            /// # Safety
            /// None needed: the call is refused.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn #symbol() -> CUresult { guard::unsupported(#at) }
        });
    }
    let Params { names, types } = Params::of(target)?;
    let args = arguments(target, per_thread);
    let subject = subject_of(target, &args, per_thread);
    let named = named(target, &args, per_thread);
    let captures = target.attributes.capture.map(|capture| match capture {
        Capture::Unsafe => quote!(calls::check_captures_unsafe()?;),
        Capture::Context => quote!(calls::check_captures_of_context()?;),
    });
    let body = body(target, &args);
    let mut configs = target
        .params
        .iter()
        .filter(|p| p.ctype == "const CUlaunchConfig *");
    let body = match (per_thread, configs.next()) {
        (Some(PerThread::Ptsz), Some(config)) => {
            let config = name(&config.name);
            quote!(guard::with_per_thread_config(#config, |#config| #body))
        }
        (Some(PerThread::Ptds), _) => quote!(guard::with_per_thread_default(|| #body)),
        _ => body,
    };
    let in_child = target.attributes.is_after_fork.then(|| {
        quote! {
            /// SAFETY: the arguments are as the manual asks, and the serving function asks no more.
            let in_child = guard::in_child(|| unsafe { #body });
            if let Some(answer) = in_child {
                return answer;
            }
        }
    });
    Ok(quote! {
        /// # Safety
        /// Pointers are valid as the driver API's manual asks of a caller.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn #symbol(#(#names: #types),*) -> CUresult {
            #[repr(C)]
            #[derive(Clone, Copy)]
            struct Params(#(#types),*);
            #in_child
            /// SAFETY: the arguments are as the manual asks, and the serving function asks no more.
            guard::enter(#at, || [#(#named),*], || #subject, || Params(#(#args),*), || unsafe { #captures #body })
        }
    })
}

/// Returns the arguments that may name something of one of several servers.
fn named(call: &Call, args: &[TokenStream], per_thread: Option<PerThread>) -> Vec<TokenStream> {
    let params = call.params.iter().zip(args);
    match &call.attributes.server {
        Some(ServerBy::Current) => return Vec::new(),
        Some(ServerBy::Address(name)) => {
            let mut found = params.filter(|(param, _)| param.name == *name);
            let address = found
                .next()
                .map(|(_, arg)| quote!(Named::Address(#arg as u64)));
            return address.into_iter().collect();
        }
        None => {}
    }
    let of_type = |(param, arg): (&decl::Param, &TokenStream)| {
        let handle = || quote!(Named::Handle(#arg.0 as u64));
        Some(match param.ctype.as_str() {
            // It counts as the stream below.
            "CUstream" => return None,
            "CUdevice" => quote!(Named::Device(#arg)),
            "CUdeviceptr" => quote!(Named::Address(#arg)),
            "CUtexObject" | "CUsurfObject" | "CUmemGenericAllocationHandle" => {
                quote!(Named::Handle(#arg))
            }
            // A library's kernel, or a module's function.
            "CUkernel" | "CUmodule" | "CUuserObject" => handle(),
            "const CUmemAllocationProp *" => quote!(Named::Device(guard::device_of(#arg))),
            "const CUmemPoolProps *" => quote!(Named::Device(guard::device_of_pool(#arg))),
            "CUmemLocation *" => quote!(Named::Device(guard::device_at(#arg))),
            ctype => match decl::scalar(ctype)? {
                Type::Handle(_) => handle(),
                _ => return None,
            },
        })
    };
    // A call without a stream argument is for its address, whichever its default stream.
    let stream = stream_of(
        call,
        args,
        per_thread.filter(|form| *form == PerThread::Ptsz),
    );
    let stream = stream.map(|stream| quote!(Named::of_stream(#stream)));
    stream
        .into_iter()
        .chain(params.filter_map(of_type))
        .collect()
}

/// Returns the call of the function that serves a call.
fn body(call: &Call, args: &[TokenStream]) -> TokenStream {
    if let Some(node) = &call.attributes.node {
        return node_call(call, node, args);
    }
    if call.derived {
        let derived = format_ident!("derived__{}", call.symbol);
        let then = call.attributes.then.as_ref().map(|then| {
            let function = ident(&then.function);
            let given = then.arguments.iter().map(|argument| name(argument));
            quote!(.inspect(|()| calls::#function(#(Argument::from_c(#given)),*)))
        });
        return quote!(#derived(#(#args),*) #then);
    }
    let function = ident(&call.symbol);
    // The parameter's type, in `calls`, says what the program promises of a pointer.
    quote!(calls::#function(#(Argument::from_c(#args)),*))
}

/// Returns the body of a call that adds, changes or reads one kind of node.
fn node_call(call: &Call, node: &NodeCall, args: &[TokenStream]) -> TokenStream {
    let kind = ident(&node.kind.function);
    if node.verb == NodeVerb::Get {
        let (node, out) = (&args[0], &args[1]);
        return quote!(calls::get_node(#node, Argument::from_c(#out.cast()), calls::kept::#kind));
    }
    let given = node.kind.arguments.iter().map(|a| {
        let given = name(a);
        quote!(Argument::from_c(#given))
    });
    let work = quote!(|driver| calls::given::#kind(driver, #(#given),*));
    let is_exec = call.params.iter().any(|p| p.ctype == "CUgraphExec");
    match (node.verb, is_exec) {
        (NodeVerb::Add, _) => {
            let place = &args[..4];
            quote!(calls::add_node(&calls::Spot::plain(#(Argument::from_c(#place)),*), #work))
        }
        (_, true) => {
            let (exec, node) = (&args[0], &args[1]);
            quote!(calls::set_exec_node(#exec, #node, #work))
        }
        (_, false) => {
            let node = &args[0];
            quote!(calls::set_node(#node, #work))
        }
    }
}

/// The parts of a derived call that its parameters contribute to.
#[derive(Default)]
struct Parts {
    /// Statements before the message is sent.
    prepare: TokenStream,
    /// Fields of the message.
    fields: Vec<TokenStream>,
    /// Statements that write the reply to the caller's outputs.
    outputs: Vec<TokenStream>,
    /// Statements that write the handles of new objects.
    minted: Vec<TokenStream>,
}

impl Parts {
    fn add(
        &mut self,
        call: &Call,
        param: &decl::Param,
        direction: &Direction,
    ) -> Result<(), Failure> {
        let (c, field) = (name(&param.name), ident(&decl::snake_case(&param.name)));
        let not_null = quote! {
            if #c.is_null() { return Err(CUresult::CUDA_ERROR_INVALID_VALUE); }
        };
        match direction {
            Direction::In => {
                let value = argument(call, param)?;
                self.fields.push(quote!(#field: #value));
            }
            Direction::RecordIn(bytes) => {
                let (record, bytes) = (format_ident!("record_{field}"), number(*bytes));
                self.prepare.extend(quote! {
                    #not_null
                    /// SAFETY: not NULL, and the type's record has this many bytes.
                    let #record = unsafe { std::slice::from_raw_parts(#c.cast::<u8>(), #bytes) };
                });
                self.fields.push(quote!(#field: #record));
            }
            Direction::Mint(handle) => {
                let mint = format_ident!("mint_{}", handle.name());
                let (new, as_handle) = (
                    format_ident!("minted_{field}"),
                    format_ident!("handle_{}", handle.name()),
                );
                self.prepare
                    .extend(quote!(#not_null let #new = driver.#mint();));
                self.fields.push(quote!(#field: #new));
                self.minted.push(quote! {
                    /// SAFETY: not NULL, and the manual asks callers for room for the answer.
                    unsafe { #c.write(driver.#as_handle(#new)) };
                });
            }
            Direction::Out => {
                self.prepare.extend(not_null);
                self.outputs.push(quote! {
                    /// SAFETY: not NULL, and the manual asks callers for room for the answer.
                    unsafe { #c.write(reply.#field as _) };
                });
            }
            Direction::RecordOut(bytes) => {
                let bytes = number(*bytes);
                self.prepare.extend(not_null);
                self.outputs.push(quote! {
                    let len = reply.#field.len().min(#bytes);
                    /// SAFETY: not NULL, and the type's record has this many bytes.
                    unsafe { std::ptr::copy_nonoverlapping(reply.#field.as_ptr(), #c.cast::<u8>(), len) };
                });
            }
        }
        Ok(())
    }
}

/// Returns the client's side of a call that its declaration describes fully.
pub fn derived(op: &Op, call: &Call, directions: &[Direction]) -> Result<TokenStream, Failure> {
    let symbol = ident(&call.symbol);
    let module = format_ident!("derived_{}", call.symbol);
    let alias = format_ident!("derived__{}", call.symbol);
    let Params { names, types } = Params::of(call)?;
    let mut parts = Parts::default();
    for (param, direction) in call.params.iter().zip(directions) {
        parts.add(call, param, direction)?;
    }
    let (checks, send) = (checks(call), send(op, call, &parts));
    let Parts {
        prepare, minted, ..
    } = parts;
    Ok(quote! {
        pub(crate) mod #module {
            use super::*;
            pub(crate) unsafe fn #symbol(#(#names: #types),*) -> Result<(), CUresult> {
                let driver = driver()?;
                #checks
                #prepare
                #send
                #(#minted)*
                Ok(())
            }
        }
        pub(crate) use #module::#symbol as #alias;
    })
}

/// Returns the statements that send the message of a derived call, and read its reply.
fn send(op: &Op, call: &Call, parts: &Parts) -> TokenStream {
    let (message, fields, outputs) = (camel(&call.symbol), &parts.fields, &parts.outputs);
    let message = quote!(messages::#message { #(#fields),* });
    if is_stream_work(call) {
        let waits = matches!(call.attributes.touches, Some(Touches::WaitWord(_)));
        let follow = waits.then(|| quote!(driver.follow_others(&resolved);));
        // Declared first, since the message borrows nothing of it but its number.
        quote! {
            let resolved;
            let message = #message;
            #follow
            driver.submit_to(&resolved, &message)?;
        }
    } else if call.class == Class::Outstanding {
        let is_set = matches!(call.attributes.touches, Some(Touches::Memset(_)));
        match is_set {
            // Work of the default stream, for which blocking streams wait.
            true => quote! {
                driver.submit_to(&*driver.stream(CUstream::NULL)?, &#message)?;
                driver.end_memset(memory)?;
            },
            false => quote!(driver.submit(&#message)?;),
        }
    } else if op.reply.is_empty() {
        quote!(driver.call(&#message, |_| ())?;)
    } else {
        quote!(driver.call(&#message, |reply| { #(#outputs)* })?;)
    }
}

/// Returns whether a call gives work to a stream and does not wait.
fn is_stream_work(call: &Call) -> bool {
    call.class == Class::Outstanding && call.params.iter().any(|p| p.ctype == "CUstream")
}

/// Returns the value of a message's field that is an argument of the call.
fn argument(call: &Call, param: &decl::Param) -> Result<TokenStream, Failure> {
    let c = name(&param.name);
    let is_set = matches!(call.attributes.touches, Some(Touches::Memset(_)));
    let ty = decl::scalar(&param.ctype);
    Ok(match (ty, param.ctype.as_str()) {
        (Some(_), "CUstream") if is_stream_work(call) => {
            quote!({ resolved = driver.work_stream(#c)?; resolved.wire() })
        }
        (Some(Type::Handle(handle)), _) => {
            let verb = match call.attributes.ends {
                Some(Ends::Handle) => "retire",
                _ => "wire",
            };
            let known = format_ident!("{verb}_{}", handle.name());
            quote!(driver.#known(#c)?)
        }
        // The call's checks have looked the address up.
        (Some(_), "CUdeviceptr") if is_set => quote!(#c as u64),
        (Some(_), "CUdeviceptr") => quote!(driver.device_address(#c)?),
        (Some(_), "CUdevice") => quote!(driver.devices.server(#c)?),
        (Some(ty), _) => {
            let ty = wire_type(ty);
            quote!(#c as #ty)
        }
        (None, _) => return Err(format!("{}: {}", call.symbol, param.ctype).into()),
    })
}

/// Returns the checks of memory that the driver makes during a memset or stream memory operation.
fn checks(call: &Call) -> Option<TokenStream> {
    Some(match call.attributes.touches? {
        Touches::Memset(element) => memset_check(call, element),
        Touches::WaitWord(bytes) => word_check(bytes, "WAIT_VALUE_FLAGS"),
        Touches::WriteWord(bytes) => word_check(bytes, "WRITE_VALUE_FLAGS"),
    })
}

fn memset_check(call: &Call, element: usize) -> TokenStream {
    let has = |name: &str| call.params.iter().any(|p| p.name == name);
    let [pitch, width, height] = match has("N") {
        true => {
            let count = name("N");
            [quote!(0), quote!(#count), quote!(1)]
        }
        false => ["dstPitch", "Width", "Height"].map(|given| {
            let given = name(given);
            quote!(#given)
        }),
    };
    let (address, element) = (name("dstDevice"), number(element));
    // A stream knows its context; a call without one works in the current context. Only a call
    // without a stream may have to wait.
    let (context, stream, memory) = match has("hStream") {
        true => {
            let stream = name("hStream");
            (None, quote!(Some(#stream)), quote!(_))
        }
        false => {
            let context = quote!(driver.contexts.current()?;);
            (Some(context), quote!(None), quote!(memory))
        }
    };
    quote! {
        #context
        let Some(#memory) = driver.check_memset(
            #address, #element, #pitch as u64, [#width as u64, #height as u64], #stream
        )? else {
            return Ok(());
        };
    }
}

fn word_check(bytes: usize, allowed: &str) -> TokenStream {
    let (address, flags, bytes) = (name("addr"), name("flags"), number(bytes));
    let allowed = ident(allowed);
    quote!(calls::check_word(#address, #bytes, #flags, calls::#allowed)?;)
}
