//! A small part of what each generator makes, for readers. `make samples` writes it to `samples/`.
//! All numbers of calls and messages are 0 there, so that a new call changes no sample.

use outboard_api::{
    decl::{self, Call, Op},
    nvml as nvml_calls,
};
use proc_macro2::TokenStream;
use quote::quote;

use crate::{Failure, client, device, formatted, messages, nvidia, nvml, recorder};

/// A call that its declaration describes fully, and its message.
const DERIVED: &str = "cuMemsetD8Async";
/// A call that sets the parameters of one kind of node.
const NODE: &str = "cuGraphExecKernelNodeSetParams_v2";
/// A call that `libcuda.so` refuses.
const UNSUPPORTED: &str = "cuGraphAddExternalSemaphoresWaitNode";
/// A message with data, and one with a reply.
const MESSAGES: [&str; 2] = ["copy_in", "event_elapsed"];
const NVML: &str = "nvmlDeviceGetName";

/// Returns the name and text of every sample.
pub fn all() -> Result<Vec<(&'static str, String)>, Failure> {
    let (calls, ops) = (decl::driver()?, decl::ops()?);
    let derived_op = op(&ops, DERIVED)?;
    let (derived, directions) = derived_op.derived_from.as_ref().ok_or(DERIVED)?;
    let mut of_client = TokenStream::new();
    let mut of_recorder = TokenStream::new();
    for symbol in [DERIVED, NODE, UNSUPPORTED] {
        let call = call(&calls, symbol)?;
        of_client.extend(client::function(0, call, call, None)?);
        of_recorder.extend(recorder::function(call, call, None, 0, 0)?);
    }
    of_client.extend(client::derived(derived_op, derived, directions)?);
    let mut of_wire = TokenStream::new();
    let mut methods = device::default_method(derived_op);
    for name in MESSAGES {
        let op = op(&ops, name)?;
        of_wire.extend(messages::message_of(0, op));
        methods.extend(device::default_method(op));
    }
    let (driver_method, device_method) = (
        nvidia::driver_method(derived)?,
        nvidia::device_method(derived_op, false)?,
    );
    let nvml_calls = nvml_calls::calls()?;
    let nvml_call = nvml_calls.iter().find(|call| call.symbol == NVML);
    let samples = [
        ("client.rs", of_client),
        ("messages.rs", of_wire),
        ("device.rs", quote!(pub trait Device: Host { #methods })),
        (
            "nvidia.rs",
            quote! {
                impl Driver { #driver_method }
                impl Device for Nvidia { #device_method }
            },
        ),
        (
            "nvml.rs",
            nvml::function(&nvml_calls, 0, nvml_call.ok_or(NVML)?)?,
        ),
        ("recorder.rs", of_recorder),
    ];
    let head = "// A sample of generated code; `make samples` writes it.\n\n";
    let text = |code| Ok(format!("{head}{}", formatted(code)?));
    let texts = samples.map(|(name, code)| text(code).map(|text| (name, text)));
    texts.into_iter().collect()
}

fn call<'c>(calls: &'c [Call], symbol: &str) -> Result<&'c Call, Failure> {
    let found = calls.iter().find(|call| call.symbol == symbol);
    Ok(found.ok_or(symbol)?)
}

fn op<'o>(ops: &'o [Op], name: &str) -> Result<&'o Op, Failure> {
    Ok(ops.iter().find(|op| op.name == name).ok_or(name)?)
}
