//! Attributes: facts about one call or one message that several generators need, written in its own
//! line.

use super::{Call, Class, Field, Type};

/// How the nvidia device calls a function of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nvidia {
    /// Its outputs become return values. A derived call is called this way without an attribute.
    Returns,
    /// It takes arrays, strings or untyped pointers; `nvidia/calls.rs` gives it a safe form.
    Pointers,
    /// A derived call for which more has to be done than to map its handles.
    ByHand,
}

/// Why a call may be forbidden while a stream is being captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// The modes of the thread and of the captures decide.
    Unsafe,
    /// It waits for all streams of the context.
    Context,
}

/// Effect of a call on the memory at its `CUdeviceptr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touches {
    /// Sets elements of this many bytes: `N` of them, or `Height` rows of `Width`.
    Memset(usize),
    /// Its stream waits for a word of this many bytes.
    WaitWord(usize),
    /// Its stream writes a word of this many bytes.
    WriteWord(usize),
}

/// Objects that no longer exist after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    Handle,
    Module,
    Context,
}

/// The use that a call makes of one node of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerb {
    /// Adds the node to a graph. The parameters begin with output, graph, dependencies and count.
    Add,
    /// Returns the node's parameters. The first parameter is the node.
    Get,
    /// Changes the node of a graph, or of an executable graph if that is the first parameter.
    Set,
}

/// A call that adds, changes or reads one node of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCall {
    pub verb: NodeVerb,
    /// The kind of the node, and the parameters that describe it.
    pub kind: Invocation,
}

/// A function of the recorder or the client and the C parameters, or numbers, that it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    pub function: String,
    pub arguments: Vec<String>,
}

/// The work that a call gives to the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Describes the work; `None` if the recorder knows nothing of it but that there may be some.
    pub what: Option<Invocation>,
    /// An emulated longer PCIe delays it.
    pub is_delayed: bool,
}

const OTHER_WORK: Work = Work {
    what: None,
    is_delayed: false,
};

/// Cost of remoting a call, if its class and its own message do not say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// Nothing as a rule: the client knows the answer.
    Known,
    /// That of this message of `session.ops`.
    Sends(String),
    /// It depends on the arguments.
    Computed(Invocation),
}

/// How a call's server is found, if its arguments do not say it by their types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerBy {
    /// By the current context.
    Current,
    /// By this parameter, an untyped pointer: the address of pinned or device memory.
    Address(String),
}

/// Everything that follows a call's class in its line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    pub nvidia: Option<Nvidia>,
    pub capture: Option<Capture>,
    pub touches: Option<Touches>,
    pub ends: Option<Ends>,
    pub work: Option<Work>,
    pub server: Option<ServerBy>,
    /// The client's function is generated: it reads or writes one kind of node.
    pub node: Option<NodeCall>,
    /// The client's function that is told of the call's success.
    pub then: Option<Invocation>,
    pub cost: Option<Cost>,
    /// The client remembers the answer for the same values.
    pub is_asked_once: bool,
    /// `cuInit`: from this call on the driver can be used.
    pub is_init: bool,
    /// The program waits here for work of the GPU.
    pub is_wait: bool,
    /// The program asks whether work of the GPU is done.
    pub is_query: bool,
    /// It records its event in a stream.
    pub records_event: bool,
    /// It is no work, but comes after and before the work of its stream.
    pub is_stream_ordered: bool,
    /// It finds functions by their names.
    pub finds_functions: bool,
    /// It answers in a forked child, too.
    pub is_after_fork: bool,
    /// Its message may be held back for a moment.
    pub may_be_held: bool,
    /// It may have to ask the server, though the client mostly knows the answer.
    pub may_ask: bool,
}

impl Attributes {
    /// Reads the attributes of a call, each `NAME` or `NAME VALUE`.
    pub(super) fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = Attributes::default();
        for text in texts {
            let (name, value) = text.split_once(' ').unwrap_or((text, ""));
            let is_repeated = match name {
                "nvidia" => all.nvidia.replace(nvidia(value)?).is_some(),
                "capture" => all.capture.replace(capture(value)?).is_some(),
                "memset" | "wait-word" | "write-word" => {
                    all.touches.replace(touches(name, value)?).is_some()
                }
                "ends" => all.ends.replace(ends(value)?).is_some(),
                "work" => all.work.replace(work(value)?).is_some(),
                "server" => all.server.replace(server(value)?).is_some(),
                "node" => all.node.replace(node(value)?).is_some(),
                "then" => all.then.replace(invocation(value)?).is_some(),
                "sends" => all.cost.replace(Cost::Sends(word(value)?)).is_some(),
                "cost" => {
                    let cost = Cost::Computed(invocation(value)?);
                    all.cost.replace(cost).is_some()
                }
                _ if !value.is_empty() => return Err(format!("attribute '{text}'")),
                "known" => all.cost.replace(Cost::Known).is_some(),
                "asked-once" => std::mem::replace(&mut all.is_asked_once, true),
                "init" => std::mem::replace(&mut all.is_init, true),
                "waits" => std::mem::replace(&mut all.is_wait, true),
                "queries" => std::mem::replace(&mut all.is_query, true),
                "stream-ordered" => std::mem::replace(&mut all.is_stream_ordered, true),
                "records-event" => std::mem::replace(&mut all.records_event, true),
                "finds-functions" => std::mem::replace(&mut all.finds_functions, true),
                "after-fork" => std::mem::replace(&mut all.is_after_fork, true),
                "may-be-held" => std::mem::replace(&mut all.may_be_held, true),
                "may-ask" => std::mem::replace(&mut all.may_ask, true),
                _ => return Err(format!("attribute '{text}'")),
            };
            if is_repeated {
                return Err(format!("'{text}' says again what another attribute says"));
            }
        }
        Ok(all)
    }

    /// Counts what the call is of the things of which it may be one.
    fn roles(&self) -> usize {
        let roles = [
            self.ends.is_some(),
            self.work.is_some() || matches!(self.touches, Some(Touches::Memset(_))),
            self.is_init,
            self.is_wait,
            self.is_query,
            self.is_stream_ordered,
        ];
        roles.iter().filter(|is| **is).count()
    }

    /// Refuses attributes that contradict the call or each other.
    pub(super) fn check(&self, call: &Call) -> Result<(), String> {
        let is_nothing = *self == Attributes::default();
        // What the client does not serve a local driver may, and the server uses some of it.
        let not_by_client = Attributes {
            nvidia: self.nvidia,
            work: Some(OTHER_WORK).filter(|_| self.work.is_some()),
            ..Attributes::default()
        };
        let has = |ctype: &str| call.params.iter().any(|p| p.ctype == ctype);
        let rules = [
            (
                call.same_as.is_some() && !is_nothing,
                "an alias has the attributes of its call",
            ),
            (
                call.class == Class::Unsupported && *self != not_by_client,
                "an unsupported call has only nvidia and work other",
            ),
            (
                self.roles() > 1,
                "a call is one of init, waits, queries, ends, work, memset and stream-ordered",
            ),
            (
                self.records_event && !has("CUevent"),
                "only a call with an event records it",
            ),
            (
                self.is_query && !has("CUevent") && !has("CUstream"),
                "only a call with an event or a stream queries it",
            ),
            (
                self.is_stream_ordered && !has("CUstream"),
                "only a call with a stream is ordered there",
            ),
            (
                self.is_wait && call.class != Class::Synchronous,
                "only a synchronous call waits",
            ),
            (
                self.is_asked_once && matches!(self.cost, Some(Cost::Known | Cost::Computed(_))),
                "what is asked once costs what its message costs",
            ),
            (
                call.class == Class::Local && self.cost.is_some(),
                "a local call costs nothing",
            ),
            (
                (self.is_after_fork || self.may_ask) && call.class != Class::Local,
                "only a local call answers without a session, or asks at times",
            ),
            (
                self.may_be_held && call.class != Class::Outstanding,
                "only what is sent without a reply may be held back",
            ),
            (
                self.node.as_ref().is_some_and(|node| !node.fits(call)),
                "a node's call begins with its output and graph, or with the node",
            ),
            (
                self.finds_functions && *self != Self::only_finding(self.nvidia),
                "what finds functions is passed through",
            ),
        ];
        let mut rules = rules.into_iter().chain(self.rules_of_derived(call));
        if let Some((_, why)) = rules.find(|(is_broken, _)| *is_broken) {
            return Err(why.to_string());
        }
        self.check_server(call)?;
        self.invocations().try_for_each(|it| it.check(call))
    }

    fn check_server(&self, call: &Call) -> Result<(), String> {
        let Some(ServerBy::Address(name)) = &self.server else {
            return Ok(());
        };
        let is_it = |p: &super::Param| p.name == *name && p.ctype == "void *";
        match call.params.iter().any(is_it) {
            true => Ok(()),
            false => Err(format!("{name} is no untyped pointer of the call")),
        }
    }

    /// Returns what a derived call must have and what only it may have, each with whether it is
    /// broken.
    fn rules_of_derived(&self, call: &Call) -> [(bool, &'static str); 7] {
        let address = call.params.iter().any(|p| p.ctype == "CUdeviceptr");
        [
            (
                call.derived && !matches!(self.nvidia, None | Some(Nvidia::ByHand)),
                "a derived call returns its outputs, or is by-hand",
            ),
            (
                !call.derived && self.nvidia == Some(Nvidia::ByHand),
                "only a derived call can be by-hand",
            ),
            (
                call.derived && address && self.touches.is_none(),
                "a derived call with an address must say what it touches",
            ),
            (
                self.touches.is_some() && !(call.derived && address),
                "only a derived call with an address can say what it touches",
            ),
            (
                call.derived && matches!(self.cost, Some(Cost::Sends(_))),
                "a derived call sends its own message",
            ),
            (
                call.derived && self.node.is_some(),
                "a derived call is generated whole",
            ),
            (
                self.then.is_some() && !call.derived,
                "only a derived call is followed by another function",
            ),
        ]
    }

    fn only_finding(nvidia: Option<Nvidia>) -> Attributes {
        Attributes {
            nvidia,
            finds_functions: true,
            ..Attributes::default()
        }
    }

    fn invocations(&self) -> impl Iterator<Item = &Invocation> {
        let work = self.work.as_ref().and_then(|work| work.what.as_ref());
        let cost = match &self.cost {
            Some(Cost::Computed(cost)) => Some(cost),
            _ => None,
        };
        let node = self.node.as_ref().map(|node| &node.kind);
        let then = self.then.as_ref();
        work.into_iter().chain(cost).chain(node).chain(then)
    }
}

impl NodeCall {
    /// True if the call's parameters begin as its verb requires.
    fn fits(&self, call: &Call) -> bool {
        let types: Vec<&str> = call.params.iter().map(|p| p.ctype.as_str()).collect();
        match (self.verb, &types[..]) {
            (NodeVerb::Add, [out, graph, after, count, ..]) => {
                (*out, *graph) == ("CUgraphNode *", "CUgraph")
                    && (*after, *count) == ("const CUgraphNode *", "size_t")
            }
            (NodeVerb::Get, [node, _]) => *node == "CUgraphNode" && self.kind.arguments.len() == 1,
            (NodeVerb::Set, ["CUgraphExec", "CUgraphNode", ..] | ["CUgraphNode", ..]) => true,
            _ => false,
        }
    }
}

impl Invocation {
    fn check(&self, call: &Call) -> Result<(), String> {
        let is_known = |argument: &&String| {
            argument.bytes().all(|b| b.is_ascii_digit())
                || call.params.iter().any(|p| p.name == **argument)
        };
        match self.arguments.iter().find(|a| !is_known(a)) {
            Some(argument) => Err(format!("{argument} is no parameter")),
            None => Ok(()),
        }
    }
}

fn nvidia(value: &str) -> Result<Nvidia, String> {
    match value {
        "returns" => Ok(Nvidia::Returns),
        "pointers" => Ok(Nvidia::Pointers),
        "by-hand" => Ok(Nvidia::ByHand),
        _ => Err(format!("nvidia '{value}'")),
    }
}

fn server(value: &str) -> Result<ServerBy, String> {
    Ok(match value {
        "current" => ServerBy::Current,
        _ => ServerBy::Address(word(value)?),
    })
}

fn capture(value: &str) -> Result<Capture, String> {
    match value {
        "unsafe" => Ok(Capture::Unsafe),
        "context" => Ok(Capture::Context),
        _ => Err(format!("capture '{value}'")),
    }
}

fn touches(name: &str, value: &str) -> Result<Touches, String> {
    match (name, value) {
        ("memset", "1") => Ok(Touches::Memset(1)),
        ("memset", "2") => Ok(Touches::Memset(2)),
        ("memset", "4") => Ok(Touches::Memset(4)),
        ("wait-word", "4") => Ok(Touches::WaitWord(4)),
        ("wait-word", "8") => Ok(Touches::WaitWord(8)),
        ("write-word", "4") => Ok(Touches::WriteWord(4)),
        ("write-word", "8") => Ok(Touches::WriteWord(8)),
        _ => Err(format!("{name} '{value}'")),
    }
}

fn ends(value: &str) -> Result<Ends, String> {
    match value {
        "handle" => Ok(Ends::Handle),
        "module" => Ok(Ends::Module),
        "context" => Ok(Ends::Context),
        _ => Err(format!("ends '{value}'")),
    }
}

fn node(value: &str) -> Result<NodeCall, String> {
    let (verb, kind) = value.split_once(' ').unwrap_or((value, ""));
    let verb = match verb {
        "add" => NodeVerb::Add,
        "get" => NodeVerb::Get,
        "set" => NodeVerb::Set,
        _ => return Err(format!("node '{value}'")),
    };
    let kind = invocation(kind)?;
    Ok(NodeCall { verb, kind })
}

fn work(value: &str) -> Result<Work, String> {
    let (what, is_delayed) = match value.strip_suffix(" delayed") {
        Some(what) => (what, true),
        None => (value, false),
    };
    let what = match what {
        "other" if is_delayed => return Err("unknown work is delayed".into()),
        "other" => None,
        what => Some(invocation(what)?),
    };
    Ok(Work { what, is_delayed })
}

fn invocation(text: &str) -> Result<Invocation, String> {
    let (function, arguments) = text
        .strip_suffix(')')
        .and_then(|text| text.split_once('('))
        .ok_or_else(|| format!("'{text}' is no FUNCTION(ARGUMENTS)"))?;
    Ok(Invocation {
        function: word(function)?,
        arguments: arguments
            .split(", ")
            .filter(|a| !a.is_empty())
            .map(word)
            .collect::<Result<_, _>>()?,
    })
}

fn word(text: &str) -> Result<String, String> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    match !text.is_empty() && text.bytes().all(is_word) {
        true => Ok(text.to_string()),
        false => Err(format!("'{text}' is no name")),
    }
}

/// A trait that a message may have.
pub struct OpTrait {
    /// In [`OpTraits`].
    pub field: &'static str,
    pub doc: &'static str,
    pub of: fn(&OpTraits) -> bool,
}

macro_rules! traits {
    ($(#[doc = $doc:literal] $field:ident $name:literal),* $(,)?) => {
        /// Everything that follows the class of a message in its line.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct OpTraits { $(#[doc = $doc] pub $field: bool),* }

        impl OpTraits {
            pub const ALL: &[OpTrait] = &[$(OpTrait {
                field: stringify!($field),
                doc: $doc,
                of: |traits| traits.$field,
            }),*];

            fn set(&mut self, name: &str) -> Result<bool, String> {
                match name {
                    $($name => Ok(std::mem::replace(&mut self.$field, true)),)*
                    _ => Err(format!("attribute '{name}'")),
                }
            }
        }
    };
}

traits! {
    /// The session answers it; no device sees it.
    is_session "session",
    /// It is a few numbers followed by data, which is used where it was received.
    is_bulk "bulk",
    /// Its data may come on a data connection.
    takes_data "data-connection",
    /// The client may see its value on the board before its reply.
    is_fence "fence",
    /// Its last field may be laid out straight from the program's memory.
    is_gathered "gathered",
    /// It neither changes device memory nor adds work that could.
    memory_unchanged "memory-unchanged",
    /// It may be asked on a connection that is only for questions about the devices.
    is_question "question",
    /// Other sessions use the same device memory after it.
    shares_memory "shares-memory",
    /// It is executed even if the client has used up its share of the server's own memory.
    gives_back "gives-back",
    /// It takes little of the server's own memory, and what waits for the GPU may need it.
    is_light "light",
}

impl OpTraits {
    pub(super) fn parse<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = OpTraits::default();
        for name in names {
            if all.set(name)? {
                return Err(format!("'{name}' twice"));
            }
        }
        Ok(all)
    }

    /// Refuses traits that contradict the message or each other.
    pub(super) fn check(self, fields: &[Field], waits: bool) -> Result<(), String> {
        let last = fields.last().filter(|field| field.ty == Type::Bytes);
        let (ends_in_bytes, ends_in_data) =
            (last.is_some(), last.is_some_and(|f| f.name == "data"));
        let rules = [
            (self.is_bulk && !ends_in_data, "bulk without data"),
            (self.takes_data && !self.is_bulk, "data that is not bulk"),
            (
                self.is_gathered && (ends_in_data || !ends_in_bytes),
                "gathered without a last field of bytes that are not data",
            ),
            (self.is_fence && !waits, "a fence that does not wait"),
            (
                self.is_fence && !self.memory_unchanged,
                "a fence that changes memory",
            ),
            (
                self.is_light && (self.is_bulk || self.gives_back),
                "light with data, or beside gives-back",
            ),
            (
                self.is_question && !self.memory_unchanged,
                "a question that changes memory",
            ),
        ];
        match rules.iter().find(|(is_broken, _)| *is_broken) {
            Some((_, why)) => Err((*why).to_string()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{parse_call, parse_op};

    fn refusal(call: &str) -> String {
        parse_call(call).expect_err(call)
    }

    #[test]
    fn unknown_attributes_of_calls_are_refused() {
        for attribute in [
            "nvidai returns",
            "nvidia sometimes",
            "capture",
            "capture never",
            "memset 3",
            "wait-word 2",
            "ends world",
            "work copy",
            "work copy(a b)",
            "work other delayed",
            "node copy(a)",
            "node set",
            "sends",
            "cost launch",
            "known well",
            "asked-twice",
            "",
        ] {
            let why = refusal(&format!("cuX @2000 (int a) : synchronous; {attribute}"));
            assert!(!why.is_empty(), "{attribute}");
        }
        assert!(parse_call("cuX @2000 (int a) : synchronous; asked-once").is_ok());
    }

    #[test]
    fn attributes_of_calls_that_contradict_are_refused() {
        for (call, why) in [
            ("(void) : same as cuY; waits", "alias"),
            ("(void) : unsupported; asked-once", "unsupported"),
            ("(int a) : outstanding derived; nvidia returns", "by-hand"),
            ("(int a) : outstanding; nvidia by-hand", "derived"),
            ("(CUdeviceptr a) : outstanding derived", "touches"),
            ("(CUdeviceptr a) : outstanding; memset 4", "touches"),
            ("(int a) : outstanding derived; memset 4", "touches"),
            ("(int a) : synchronous; waits; ends module", "one of"),
            ("(int a) : outstanding; waits", "synchronous"),
            ("(int a) : synchronous; after-fork", "without a session"),
            ("(int a) : synchronous; may-be-held", "without a reply"),
            ("(int a) : synchronous; may-ask", "only a local"),
            ("(int a) : outstanding; records-event", "with an event"),
            ("(int a) : local; queries", "queries it"),
            ("(CUevent a) : synchronous; queries; waits", "one of"),
            ("(CUevent a) : outstanding; stream-ordered", "with a stream"),
            ("(int a) : synchronous; known; asked-once", "asked once"),
            ("(int a) : local; sends ping", "local"),
            ("(int a) : outstanding derived; sends ping", "its own"),
            ("(int a) : local; finds-functions; init", "passed through"),
            ("(int a) : synchronous; cost f(b)", "b is no parameter"),
            ("(int a) : outstanding; work f(a, b)", "b is no parameter"),
            ("(int a) : synchronous; node set free(a)", "begins with"),
            ("(CUgraphNode a) : synchronous; node get free(a)", "begins"),
            ("(CUgraphNode a) : synchronous; node set free(b)", "b is no"),
            ("(int a) : synchronous; known; sends ping", "says again"),
            ("(int a) : synchronous; waits; waits", "says again"),
            ("(int a) : local; nvidia returns; nvidia pointers", "again"),
        ] {
            let refused = refusal(&format!("cuX @2000 {call}"));
            assert!(refused.contains(why), "{call}: {refused}");
        }
    }

    #[test]
    fn attributes_of_messages_are_known_and_do_not_contradict() {
        for op in [
            "x (data bytes) : outstanding; bulky",
            "x (data bytes) : outstanding; bulk; bulk",
            "x (name bytes) : outstanding; bulk",
            "x (data bytes) : outstanding; data-connection",
            "x () : outstanding; fence; memory-unchanged",
            "x () : waits; fence",
            "x () : synchronous; question",
        ] {
            assert!(parse_op(op).is_err(), "{op}");
        }
        let op = parse_op("x (data bytes) : outstanding; bulk; data-connection").expect("valid");
        assert!(op.traits.is_bulk && op.traits.takes_data && !op.traits.is_fence);
    }
}
