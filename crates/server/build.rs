//! Generates `trait Device`, one method per message, and the dispatch of messages to it.

use std::{env, error::Error, fmt::Write, fs, path::Path};

mod build_nvidia;

use outboard_api::decl::{self, Answer, Op, Type};

fn main() -> Result<(), Box<dyn Error>> {
    let ops: Vec<Op> = decl::ops()?
        .into_iter()
        .filter(|op| !op.traits.is_session)
        .collect();
    let mut out = String::new();
    writeln!(
        out,
        "/// Methods of a device, one for each message. A device does not support those that it does not override."
    )?;
    writeln!(out, "pub trait Device: Host {{")?;
    for op in &ops {
        let result = match op.answer {
            Answer::Waits => "Pending".to_string(),
            _ if op.reply.is_empty() => "()".to_string(),
            _ => format!(
                "messages::{}Reply{}",
                decl::camel_case(&op.name),
                if bytes(&op.reply) { "<'static>" } else { "" }
            ),
        };
        writeln!(
            out,
            "    /// `{0}`\n    #[allow(unused_variables)]\n    fn {1}(&mut self, cx: &mut Cx<'_>, m: &messages::{2}{3}) -> Result<{result}, Failure> {{ Err(Failure::unsupported(\"{0}\")) }}",
            op.name,
            method(&op.name),
            decl::camel_case(&op.name),
            if bytes(&op.fields) { "<'_>" } else { "" },
        )?;
    }
    writeln!(out, "}}")?;
    writeln!(
        out,
        "/// Hands a message to the device. The reply, if there is one at once, is encoded into `reply`."
    )?;
    writeln!(
        out,
        "pub fn dispatch(device: &mut dyn Device, cx: &mut Cx<'_>, request: &Request<'_>, reply: &mut Vec<u8>) -> Result<Outcome, Failure> {{\n    match request {{"
    )?;
    for op in &ops {
        let (camel, method) = (decl::camel_case(&op.name), method(&op.name));
        match op.answer {
            Answer::Waits => writeln!(
                out,
                "        Request::{camel}(m) => device.{method}(cx, m).map(Outcome::Wait),"
            )?,
            _ if op.reply.is_empty() => writeln!(
                out,
                "        Request::{camel}(m) => device.{method}(cx, m).map(|()| Outcome::Done),"
            )?,
            _ => writeln!(
                out,
                "        Request::{camel}(m) => device.{method}(cx, m).and_then(|r| encode(&r, reply)).map(|()| Outcome::Done),"
            )?,
        }
    }
    writeln!(
        out,
        "        _ => Err(Failure::unsupported(\"a session message\")),\n    }}\n}}"
    )?;
    let folder = env::var("OUT_DIR")?;
    let folder = Path::new(&folder);
    fs::write(folder.join("device.rs"), out)?;
    fs::write(folder.join("nvidia_table.rs"), build_nvidia::table()?)?;
    fs::write(folder.join("nvidia_device.rs"), build_nvidia::device(&ops)?)?;
    Ok(())
}

fn bytes(fields: &[decl::Field]) -> bool {
    fields.iter().any(|f| f.ty == Type::Bytes)
}

fn method(name: &str) -> String {
    decl::snake_case(name)
}
